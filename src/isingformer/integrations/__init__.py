"""Other libraries' trainers. Import the module of the library you use; nothing here is imported by itself."""
