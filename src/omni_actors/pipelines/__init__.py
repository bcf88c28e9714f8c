"""What a deployment is: declarations, the registry, the settings, and how they become one frozen Plan."""
