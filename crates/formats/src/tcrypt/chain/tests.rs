//! Chains against the known answers of an independent maker and of TrueCrypt itself.

use super::*;
use underseal_volume::Hash;

/// Lines of "mode chain, first 16 bytes of data, first 12 bytes of its SHA-256, first 16 bytes
/// of a header": of a key area of bytes 00 to ff, sectors 7 and 8 of zeros in the mode's own
/// count, a header of zeros.
const KNOWN: &str = include_str!("../known_answers.txt");

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn mode(name: &str) -> Mode {
    match name {
        "xts" => Mode::Xts,
        "lrw" => Mode::Lrw,
        "cbc" => Mode::Cbc,
        "outer-cbc" => Mode::OuterCbc,
        _ => Mode::InnerCbc,
    }
}

#[test]
fn every_chain_makes_the_known_answers() {
    let mut chains = Chain::all(true);
    chains.extend(Chain::all(false).into_iter().filter(|chain| chain.mode != Mode::Xts));
    let material: Vec<u8> = (0..=255).collect();
    let mut seen = 0;
    for line in KNOWN.lines() {
        let [of, ciphers, first, digest, header] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let chain = *chains.iter().find(|c| c.mode == mode(of) && c.ciphers == ciphers).expect(line);
        let (cipher, parameters) = chain.data_cipher(&material).unwrap();
        let mut data = vec![0; 1024];
        // LRW's numbers begin at the data, CBC's at 1; both are the sector number that dm-crypt
        // counts.
        cipher.encrypt(7, InOutBuf::from(&mut data[..]));
        assert_eq!(data[..16], hex(first), "{chain}");
        assert_eq!(Hash::Sha256.digest(&[&data])[..12], hex(digest), "{chain}");
        cipher.decrypt(7, InOutBuf::from(&mut data[..]));
        assert!(data.iter().all(|byte| *byte == 0), "{chain}");
        // dm-crypt has neither Blowfish of little-endian words nor an LRW of 64 bits.
        let known = !ciphers.contains('-') && ciphers != "blowfish_le" && !chain.is_small_lrw();
        assert_eq!(parameters.is_some(), known, "{chain}");
        // The first block of a header of zeros decrypts to zeros, regardless of the blocks
        // behind it.
        let mut sealed = [0; SEALED];
        sealed[..16].copy_from_slice(&hex(header));
        let plain = chain.open_header(&material, &sealed).unwrap();
        assert_eq!(plain.as_bytes()[..16], [0; 16], "{chain}");
        if chain.mode == Mode::Xts {
            assert_eq!(chain.seal_header(&material, &[0; SEALED]).unwrap()[..16], hex(header));
        }
        seen += 1;
    }
    assert_eq!(seen, chains.len());
}

/// The CRC-32s that TrueCrypt 7.1a's test of its old modes expects, by chain and mode: of 1024
/// bytes that count up, keys of bytes that count up, and data unit 0x0234567890abcdef.
const OF_TRUECRYPT_ITSELF: &str = "\
    lrw aes 5237acf9, lrw blowfish_le f94d5300, lrw cast5 33971e82, lrw serpent 7fb86805, \
    lrw des3_ede 2b20bb84, lrw twofish a9de0f0b, lrw twofish-aes 4ed0fd80, \
    lrw serpent-twofish-aes ea04b3cf, lrw aes-serpent 0d33596a, lrw aes-twofish-serpent 2845d0e3, \
    lrw serpent-twofish ca65c5cd, cbc aes 2274f53d, cbc blowfish_le 033899a1, cbc cast5 331cecc7, \
    cbc serpent 42dff3d4, cbc des3_ede fe497d0c, inner-cbc blowfish_le-aes a7a80c84, \
    inner-cbc serpent-blowfish_le-aes a0584562, outer-cbc twofish-aes 3c226444, \
    outer-cbc serpent-twofish-aes 5e5e77fd, outer-cbc aes-serpent 57c612d5, \
    outer-cbc aes-twofish-serpent 081e045a, outer-cbc serpent-twofish a7b659f3";

/// Every chain and mode before XTS is in TrueCrypt's own test but for CBC of Twofish alone.
#[test]
fn every_old_chain_passes_truecrypts_own_test() {
    let plain: Vec<u8> = (0..1024).map(|i: u32| i.to_le_bytes()[0]).collect();
    let material: Vec<u8> = (0..32).chain(plain[..224].iter().copied()).collect();
    let mut left: Vec<Chain> =
        Chain::all(false).into_iter().filter(|chain| chain.mode != Mode::Xts).collect();
    for of in OF_TRUECRYPT_ITSELF.split(", ") {
        let [of, ciphers, crc] = of.split(' ').collect::<Vec<_>>()[..] else { panic!("{of}") };
        let at = left.iter().position(|c| c.mode == mode(of) && c.ciphers == ciphers).expect(ciphers);
        let chain = left.swap_remove(at);
        // TrueCrypt's LRW counts from the first sector of the data, behind the header.
        let unit = 0x0234_5678_90ab_cdef - u64::from(chain.mode == Mode::Lrw);
        let (cipher, _) = chain.data_cipher(&material).unwrap();
        let mut data = plain.clone();
        cipher.encrypt(unit, InOutBuf::from(&mut data[..]));
        assert_eq!(format!("{:08x}", crc32fast::hash(&data)), crc, "{chain}");
        cipher.decrypt(unit, InOutBuf::from(&mut data[..]));
        assert!(data == plain, "{chain}");
    }
    assert_eq!(left.iter().map(Chain::to_string).collect::<Vec<_>>(), ["twofish-cbc-tcw"]);
}

#[test]
fn a_chain_has_two_names() {
    for (name, veracrypt) in
        [("aes", "AES"), ("twofish-aes", "AES(Twofish)"), ("serpent-twofish-aes", "AES(Twofish(Serpent))")]
    {
        let chain = Chain::of_veracrypt(name).unwrap();
        assert_eq!((chain.name(), chain.veracrypt_name()), (name, veracrypt.to_owned()));
        assert_eq!(Chain::of_veracrypt(veracrypt).unwrap(), chain);
    }
    for none in ["aes-twofish", "Twofish(AES)", "blowfish_le", "", "aes-xts-plain64"] {
        assert_eq!(Chain::of_veracrypt(none).unwrap_err().kind(), ErrorKind::BadOption, "{none}");
    }
    let (aes, both) = (Chain::of_veracrypt("aes").unwrap(), Chain::of_veracrypt("twofish-aes").unwrap());
    assert!(ChainFilter::containing("aes").takes(both) && ChainFilter::default().takes(both));
    assert!("aes".parse::<ChainFilter>().unwrap().takes(aes));
    assert!(!"aes".parse::<ChainFilter>().unwrap().takes(both));
}

#[test]
fn material_that_is_too_short_is_refused() {
    for chain in Chain::all(true).into_iter().chain(Chain::all(false)) {
        let short = vec![0; chain.material() - 1];
        assert_eq!(chain.data_cipher(&short).err().unwrap().kind(), ErrorKind::BadHeader);
        assert_eq!(chain.open_header(&short, &[0; SEALED]).unwrap_err().kind(), ErrorKind::BadHeader);
    }
}
