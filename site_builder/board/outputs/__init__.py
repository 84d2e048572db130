"""The files of www/ for terminals and programs."""
