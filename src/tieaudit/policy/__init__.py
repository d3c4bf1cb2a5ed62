"""What a project asks of its models: settings, accepted findings, waivers, limits, and the exit code that follows."""
