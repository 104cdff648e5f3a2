//! Catalogs that are wrong, each with the exact message.
