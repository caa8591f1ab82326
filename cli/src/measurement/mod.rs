//! Commands that measure and judge: `bench`, `profile`, `experiment`, `report`, `selftest`.

pub(crate) mod bench;
pub(crate) mod experiment;
pub(crate) mod fuzz;
#[cfg(feature = "cuda")]
mod modelled;
pub(crate) mod profile;
pub(crate) mod profile_table;
pub(crate) mod report;
pub(crate) mod selftest;
