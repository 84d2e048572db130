"""Who used how much: users.html, fleet.html and `gpuboard stats`."""
