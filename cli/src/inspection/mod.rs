//! Commands that show what the compiler does: `dump`, `explain`, `opt`, `bisect`, `presets`.

pub(crate) mod bisect;
pub(crate) mod dump;
pub(crate) mod explain;
pub(crate) mod opt;
pub(crate) mod presets;
pub(crate) mod scaling;
pub(crate) mod stages;
pub(crate) mod view;
