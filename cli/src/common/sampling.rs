//! Flags of sampling: how the next token is picked.

use crate::common::error::CliError;
use kernfusion_lm::sample::Sampler;

/// Which tokens may be picked, and how boldly.
#[derive(clap::Args)]
pub(crate) struct SamplingArgs {
    /// Pick among the K likeliest only; 1: always the likeliest
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Pick among the fewest that have this probability together
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Below 1: safer, above: bolder; 0: always the likeliest
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    temperature: f64,
    /// Seed of the picks
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

impl SamplingArgs {
    /// The sampler of these flags.
    pub(crate) fn sampler(&self) -> Result<Sampler, CliError> {
        let sampler = Sampler::new(self.temperature, self.top_k, self.top_p, self.seed);
        Ok(sampler.map_err(kernfusion_lm::Error::from)?)
    }
}
