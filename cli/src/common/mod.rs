//! What commands share: flags, the terminal, files and their errors.

pub(crate) mod destination;
pub(crate) mod error;
pub(crate) mod folder;
pub(crate) mod imported;
pub(crate) mod machine;
pub(crate) mod model;
pub(crate) mod objective;
pub(crate) mod sampling;
pub(crate) mod screen;
pub(crate) mod source;
pub(crate) mod subject;
pub(crate) mod workload;
