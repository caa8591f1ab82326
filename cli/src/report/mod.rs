//! Pages about runs and measurements: HTML that stands alone, with its plots drawn into it, light and dark, without scripts.

mod bars;
mod bench;
mod description;
pub(crate) mod figures;
pub(crate) mod page;
pub(crate) mod plot;
mod run;

pub use bench::{Measurement, Measurements, bench_page};
pub use description::Description;
pub use run::run_page;
