//! Keys for typing, as systemd-cryptenroll makes them.
//!
//! A key is 256 random bits, written as 64 characters in eight groups, with dashes between the
//! groups. The characters are the alphabet "modhex", which is at the same places of every keyboard.
//! The keyslot's passphrase is exactly this text; users may type it without dashes, and in
//! capitals.

use crate::{Key, Result, kdf, random};

const LETTERS: [u8; 16] = *b"cbdefghijklnrtuv";
/// The number of characters, and the number in a group.
const COUNT: usize = 64;
const GROUP: usize = 8;
const LEN: usize = COUNT + COUNT / GROUP - 1;

/// Returns a new recovery key.
///
/// # Errors
/// `Memory` when no memory can be locked; `Io` when the kernel returns no random bytes.
pub fn recovery_key() -> Result<Key> {
    let secret = random::key(COUNT / 2)?;
    let nibbles = secret.as_bytes().iter().flat_map(|byte| [byte >> 4, byte & 15]);
    written(nibbles.map(|nibble| LETTERS[usize::from(nibble)]))
}

/// Returns true when a typed passphrase has the form of a recovery key, with its dashes or without.
/// Only a keyslot can decide whether it is the right key.
pub fn is_recovery_key(typed: &Key) -> bool {
    let has_dashes = match typed.len() {
        COUNT => false,
        LEN => true,
        _ => return false,
    };
    typed.as_bytes().iter().enumerate().all(|(i, byte)| match has_dashes && i % (GROUP + 1) == GROUP {
        true => *byte == b'-',
        false => LETTERS.contains(&byte.to_ascii_lowercase()),
    })
}

/// Returns a recovery key in its printed form, when it was typed in another form.
pub(crate) fn as_printed(typed: &Key) -> Result<Option<Key>> {
    if !is_recovery_key(typed) {
        return Ok(None);
    }
    let letters = typed.as_bytes().iter().filter(|byte| **byte != b'-');
    let printed = written(letters.map(u8::to_ascii_lowercase))?;
    Ok(Some(printed).filter(|printed| printed != typed))
}

/// Returns the characters with their dashes.
fn written(letters: impl Iterator<Item = u8>) -> Result<Key> {
    let mut key = kdf::new_key(LEN)?;
    let bytes = key.as_mut_bytes();
    bytes.fill(b'-');
    let places = (0..LEN).filter(|i| i % (GROUP + 1) != GROUP);
    places.zip(letters).for_each(|(i, letter)| bytes[i] = letter);
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_recovery_key_is_eight_groups_of_eight_letters_and_never_the_same() {
        let one = recovery_key().unwrap();
        let text = std::str::from_utf8(one.as_bytes()).unwrap();
        let groups: Vec<&str> = text.split('-').collect();
        assert_eq!(groups.len(), 8);
        assert!(groups.iter().all(|group| group.len() == 8 && group.bytes().all(|b| LETTERS.contains(&b))));
        assert!(is_recovery_key(&one) && as_printed(&one).unwrap().is_none());
        assert!(recovery_key().unwrap() != one);
    }

    #[test]
    fn it_may_be_typed_without_dashes_and_in_capitals() {
        let printed = "cbdefghi-jklnrtuv-cbdefghi-jklnrtuv-cbdefghi-jklnrtuv-cbdefghi-jklnrtuv";
        let bare = printed.replace('-', "");
        for typed in [bare.clone(), bare.to_uppercase(), printed.to_uppercase()] {
            assert!(as_printed(&key(&typed)).unwrap().unwrap() == key(printed), "{typed}");
        }
        let moved = printed.replacen("cbdefghi-j", "cbdefgh-ij", 1);
        let digit = bare.replacen('c', "1", 1);
        for other in ["", "password", &bare[1..], &format!("{bare}c"), &moved, &digit, &printed[1..]] {
            assert!(!is_recovery_key(&key(other)) && as_printed(&key(other)).unwrap().is_none(), "{other}");
        }
    }

    #[test]
    fn one_that_is_typed_otherwise_than_it_was_printed_gets_no_second_budget() {
        use crate::storage::recorder::Recorder;
        use crate::{Cost, FormatOptions, Header, KdfLimits, NewHeader, Pbkdf, UnlockOptions};

        let printed = recovery_key().unwrap();
        let bare: Vec<u8> = printed.as_bytes().iter().copied().filter(|byte| *byte != b'-').collect();
        let bare = Key::new(&bare).unwrap();
        for options in [FormatOptions::luks1(), FormatOptions::luks2()] {
            let options = FormatOptions {
                pbkdf: Pbkdf { cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() },
                data_offset: Some(4 << 20),
                ..options
            };
            let disk = Recorder::new(vec![0; 5 << 20]);
            NewHeader::prepare(5 << 20, &printed, options).unwrap().write(&disk).unwrap();
            let header = Header::read(&disk).unwrap();
            let opens = |typed: &Key, rounds| {
                let limits = KdfLimits { rounds, ..KdfLimits::default() };
                header.unlock(&disk, typed, &UnlockOptions { limits, ..UnlockOptions::default() }).is_ok()
            };
            let once = (1..1 << 20).step_by(999).find(|rounds| opens(&printed, *rounds)).unwrap();
            assert!(!opens(&bare, once), "the first try has spent it");
            assert!(opens(&bare, 2 * once));
        }
    }
}
