//! Bytes as characters that can be seen, as GPT-2's vocabulary writes them (Radford et al., 2019): printable bytes of Latin-1
//! stand for themselves, the others for the characters from U+0100 on.

use std::collections::HashMap;
use std::sync::OnceLock;

/// The character of each byte.
pub(super) fn characters() -> &'static [char; 256] {
    static CHARACTERS: OnceLock<[char; 256]> = OnceLock::new();
    CHARACTERS.get_or_init(|| {
        let mut others = '\u{100}'..;
        std::array::from_fn(|byte| match byte as u8 {
            byte @ (b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) => char::from(byte),
            _ => others.next().expect("there are more characters than bytes"),
        })
    })
}

/// The byte of a character, if it stands for one.
pub(super) fn byte(character: char) -> Option<u8> {
    static BYTES: OnceLock<HashMap<char, u8>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| (0..=255).map(|byte| (characters()[usize::from(byte)], byte)).collect());
    bytes.get(&character).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        assert!((0..=255).all(|b| byte(characters()[usize::from(b)]) == Some(b)));
        // As in GPT-2's vocabulary.
        assert_eq!(
            [b' ', b'\n', b'A', 0xad].map(|b| characters()[usize::from(b)]),
            ['Ġ', 'Ċ', 'A', '\u{143}']
        );
        assert_eq!(byte('世'), None);
    }
}
