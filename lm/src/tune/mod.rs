//! What comes after pre-training: learning from responses, from preferences, and from rewards.
//!
//! * [`Supervised`]: prompts with responses; the loss is on the responses alone.
//! * [`RewardModel`]: pairs of responses of which one is better; a number for each text comes out.
//! * [`Ppo`]: the model's own responses to prompts, judged by a reward.
//!
//! Each begins with the [`Pretrained`] model of a checkpoint and leaves a checkpoint behind. Every number is a function of
//! the settings, the rows and the step.

mod examples;
mod learner;
mod ppo;
mod pretrained;
mod reward;
mod rollout;
mod supervised;
#[cfg(test)]
mod tests;

pub use examples::{Demonstration, Preference, Prompt};
pub use learner::Tuning;
pub use ppo::{Iteration, Ppo, PpoSettings};
pub use pretrained::Pretrained;
pub use reward::{RewardModel, Scorer};
pub use rollout::{advantages, divergence};
pub use supervised::Supervised;
