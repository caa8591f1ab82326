//! Commands that train: `train`, `tune`, `data`.

pub(crate) mod adaptation;
pub(crate) mod data;
pub(crate) mod live;
pub(crate) mod program;
pub(crate) mod ranks;
pub(crate) mod stop;
pub(crate) mod tokenizer;
pub(crate) mod train;
pub(crate) mod train_report;
pub(crate) mod tune;
pub(crate) mod watch;
