//! A driver that fails on request.
