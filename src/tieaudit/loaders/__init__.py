"""One file per format. A loader turns a `Source` into a `LoadedFile`; only `FormatError` leaves it."""
