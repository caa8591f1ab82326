//! A rank without others: what it would run can be planned and looked at, and exchanges nothing.

use super::{CommunicationError, Communicator};
use std::sync::Arc;

/// The first of `ranks` ranks, to compile what it would run. The others are not there: whatever it exchanges is an error.
pub fn planned(ranks: usize) -> Arc<dyn Communicator> {
    Arc::new(Planned { ranks })
}

#[derive(Debug)]
struct Planned {
    ranks: usize,
}

impl Planned {
    fn refuse(&self) -> Result<(), CommunicationError> {
        Err(CommunicationError::Planned { ranks: self.ranks })
    }
}

impl Communicator for Planned {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn exchange(
        &self,
        _sent: &[u8],
        _part: usize,
        _received: &mut [u8],
        _stride: usize,
    ) -> Result<(), CommunicationError> {
        self.refuse()
    }

    fn gather(&self, _all: &mut [u8], _part: usize) -> Result<(), CommunicationError> {
        self.refuse()
    }
}
