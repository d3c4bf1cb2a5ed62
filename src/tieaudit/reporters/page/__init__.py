"""This package holds the HTML page: its template, style and script as they are, and the modules that work out what they show."""
