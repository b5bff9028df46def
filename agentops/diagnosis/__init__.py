"""What `doctor` looks at, one module a part of the installation."""
