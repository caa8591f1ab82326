//! `kernfusion data`: texts to train on.

use crate::Outcome;
use crate::common::error::CliError;
use crate::common::screen::Screen;
use crate::fetch::fetch_tiny_shakespeare;
use clap::{Subcommand, ValueEnum};
use kernfusion_lm::text::data_directory;
use std::process::ExitCode;

/// Fetch texts to train on
#[derive(clap::Args)]
#[command(arg_required_else_help = false, after_help = "Example: kernfusion data fetch tiny-shakespeare")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Download a text into $KERNFUSION_DATA, or else the user's cache, and check it
    #[command(after_help = "Example: kernfusion data fetch tiny-shakespeare")]
    Fetch {
        /// Which text
        #[arg(value_enum)]
        text: Text,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Text {
    /// Forty thousand lines of Shakespeare, 1.1 MB
    TinyShakespeare,
}

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    let Action::Fetch { text: Text::TinyShakespeare } = args.action;
    let directory = data_directory().ok_or_else(|| {
        CliError::Usage("there is no place for the text: set KERNFUSION_DATA to a directory".into())
    })?;
    let fetched = fetch_tiny_shakespeare(&directory)?;
    screen.line(fetched);
    Ok(ExitCode::SUCCESS)
}
