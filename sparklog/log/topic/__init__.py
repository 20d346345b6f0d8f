"""Root and topic handles, which users open."""
