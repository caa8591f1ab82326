//! Commands that use what was trained, or a program: `generate`, `chat`, `score`, `run`, `compile`, `import`, `export`.

pub(crate) mod chat;
pub(crate) mod compile;
pub(crate) mod export;
pub(crate) mod generate;
pub(crate) mod import;
pub(crate) mod run;
pub(crate) mod score;
