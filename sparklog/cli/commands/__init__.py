"""The commands, a module each or for a group of them, named like it (`imports` is `import`)."""
