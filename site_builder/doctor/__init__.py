"""What `gpuboard doctor` looks at: a module a kind of thing, a function a check."""
