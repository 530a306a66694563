"""What comes with the package, so that everything runs with nothing downloaded: a corpus, a small model, a demo."""
