//! Random runs of one tenant.
