//! The guide: how language models are trained and used.
//!
//! | chapter | what it shows |
//! |---|---|
//! | [`quick_start`] | train a GPT on a text, save it, let it write |
//! | [`compile_ahead_of_time`] | a model in a program without the compiler |
//!
//! [The guide of the library](kernfusion::guide) is about models and layers of your own.

#[doc = include_str!("guide/quick_start.md")]
pub mod quick_start {}

#[doc = include_str!("guide/compile_ahead_of_time.md")]
pub mod compile_ahead_of_time {}
