//! The flags that say which part of a model is trained.

use crate::common::error::CliError;
use kernfusion::nn::Lora;
use kernfusion_lm::record::Adaptation;

/// Frozen layers and adapters.
#[derive(clap::Args)]
pub(crate) struct AdaptationArgs {
    /// Leaves all parameters under a module path as they are, such as wte or blocks.0; may be given more than once
    #[arg(long, value_name = "PATH")]
    freeze: Vec<String>,
    /// Trains adapters of this rank (LoRA) and leaves everything else as it is
    #[arg(long, value_name = "RANK")]
    lora: Option<usize>,
    /// The adapters' scale is alpha by rank [default: twice the rank]
    #[arg(long, value_name = "X", requires = "lora", allow_negative_numbers = true)]
    lora_alpha: Option<f64>,
    /// Probability with which inputs of adapters are dropped [default: 0]
    #[arg(long, value_name = "P", requires = "lora", allow_negative_numbers = true)]
    lora_dropout: Option<f64>,
    /// Module paths, or parts of them, of the layers with adapters [default: attn.qkv]; of a model from elsewhere (train), names of matrices, or parts of them
    #[arg(long, value_name = "PATH,…", requires = "lora", value_delimiter = ',')]
    lora_targets: Vec<String>,
}

impl AdaptationArgs {
    /// What the flags say, if they say anything.
    pub(crate) fn adaptation(&self) -> Option<Adaptation> {
        let lora = self.lora();
        let adaptation = Adaptation { frozen: self.freeze.clone(), lora };
        (adaptation != Adaptation::default()).then_some(adaptation)
    }

    /// What the flags say of a model from elsewhere.
    pub(crate) fn of_matrices(&self) -> Result<Option<Lora>, CliError> {
        let Some(lora) = self.lora() else { return Ok(None) };
        if self.lora_targets.is_empty() {
            let reason = "--lora: with --program --lora-targets says which matrices have adapters";
            return Err(CliError::Usage(reason.into()));
        }
        if lora.dropout != 0.0 {
            return Err(CliError::Usage("--lora-dropout is of models of a preset".into()));
        }
        lora.validate()?;
        Ok(Some(lora))
    }

    fn lora(&self) -> Option<Lora> {
        self.lora.map(|rank| {
            let default = Lora::new(rank);
            Lora {
                alpha: self.lora_alpha.unwrap_or(default.alpha),
                dropout: self.lora_dropout.unwrap_or(default.dropout),
                targets: if self.lora_targets.is_empty() {
                    default.targets
                } else {
                    self.lora_targets.clone()
                },
                rank,
            }
        })
    }
}
