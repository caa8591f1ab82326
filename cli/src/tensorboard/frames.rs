//! The framing of event files, that of TensorFlow's record files: each message has its length before it, and length and message
//! each have a checksum behind them.
//!
//! ```text
//! length: u64   checksum of the length: u32   message: [u8; length]   checksum of the message: u32      (little-endian)
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// A file of framed messages.
pub(super) struct Frames(File);

impl Frames {
    /// Starts a new file.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Ok(Frames(File::create_new(path)?))
    }

    /// Writes a message in one call, so that a reader sees all of it or an end that is cut off.
    pub(super) fn write(&mut self, message: &[u8]) -> io::Result<()> {
        self.0.write_all(&frame(message))
    }
}

fn frame(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    [&length, &checksum(&length)[..], message, &checksum(message)].concat()
}

/// CRC-32C, turned by 15 bits and moved by a constant: so a checksum of data that holds checksums is none of them.
fn checksum(data: &[u8]) -> [u8; 4] {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_masked_checksums() {
        // The check value of CRC-32C is that of these digits.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(u32::from_le_bytes(checksum(b"123456789")), 0xc78a_b0e5);
        let frame = frame(b"123456789");
        assert_eq!(
            (frame.len(), &frame[..8], &frame[12..21]),
            (25, &9u64.to_le_bytes()[..], &b"123456789"[..])
        );
    }
}
