"""The builder: from data/ to the files of www/."""
