//! All of gpumem as an archive; see `mk/install.mk`.
extern crate gpumem as _;
