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
    /// Below 1: safer, above: bolder; 0: always the likeliest [default: 0.8]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Seed of the picks
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

impl SamplingArgs {
    /// The sampler of these flags.
    pub(crate) fn sampler(&self) -> Result<Sampler, CliError> {
        let temperature = self.temperature.unwrap_or(0.8);
        let sampler = Sampler::new(temperature, self.top_k, self.top_p, self.seed);
        Ok(sampler.map_err(kernfusion_lm::Error::from)?)
    }

    /// Whether the user has said how boldly to pick. Of the same seed any model makes the same text, also one that picks nothing.
    pub(crate) fn is_given(&self) -> bool {
        let SamplingArgs { top_k, top_p, temperature, .. } = self;
        top_k.is_some() || top_p.is_some() || temperature.is_some()
    }
}
