//! Every CPU path against AWS-LC, OpenSSL and other paths, byte for byte.

mod gcrypt;
mod peers;
mod plain;

use proptest::prelude::*;
use underseal_cipher::{
    BuildOptions, CipherSpec, CpuPath, InOutBuf, Key, SectorCipher, SectorSize, SharedDestination,
    SharedSource, build_with,
};

/// A request, with the alignment of its buffers.
#[derive(Debug, Clone)]
struct Case {
    key: Vec<u8>,
    size: SectorSize,
    large: bool,
    first: u64,
    data: Vec<u8>,
    /// The offsets of input and output from a cache line.
    off: (usize, usize),
    in_place: bool,
}

impl Case {
    fn cipher(&self, spec: &str, path: impl Into<Option<CpuPath>>) -> std::sync::Arc<dyn SectorCipher> {
        let spec: CipherSpec = spec.parse().unwrap();
        let key = Key::new(&self.key).unwrap();
        build_with(&BuildOptions {
            spec: &spec,
            key: &key,
            sector_size: self.size,
            iv_large_sectors: self.large,
            integrity: None,
            cpu: path.into(),
        })
        .unwrap()
    }

    /// Sends `data` through `apply`, at this case's alignments, and checks that the bytes around it
    /// are unchanged.
    fn through(&self, data: &[u8], apply: impl Fn(InOutBuf<'_, '_, u8>)) -> Vec<u8> {
        const AROUND: u8 = 0xa5;
        let place = |off: usize| {
            let buffer = vec![AROUND; data.len() + 256];
            let start = buffer.as_ptr().align_offset(64) + 64 + off;
            (buffer, start..start + data.len())
        };
        let (mut output, at) = place(self.off.1);
        if self.in_place {
            output[at.clone()].copy_from_slice(data);
            apply((&mut output[at.clone()]).into());
        } else {
            let (mut input, from) = place(self.off.0);
            input[from.clone()].copy_from_slice(data);
            apply(InOutBuf::new(&input[from.clone()], &mut output[at.clone()]).unwrap());
            assert_eq!(&input[from], data, "the input is left as it was");
        }
        assert!(output[..at.start].iter().all(|&b| b == AROUND), "bytes before the output");
        assert!(output[at.end..].iter().all(|&b| b == AROUND), "bytes behind the output");
        output[at].to_vec()
    }

    /// Sends `data` through `seal_from` or `open_to`, with shared memory aligned as this case's
    /// input or output, and checks that the bytes around it are unchanged.
    fn shared(&self, data: &[u8], cipher: &dyn SectorCipher, encrypt: bool) -> Vec<u8> {
        const AROUND: u8 = 0x5a;
        let mut shared = vec![AROUND; data.len() + 256];
        let start = shared.as_ptr().align_offset(64) + 64 + self.off.0;
        let at = start..start + data.len();
        let mut output = data.to_vec();
        if encrypt {
            shared[at.clone()].copy_from_slice(data);
            output.fill(AROUND);
            // SAFETY: the vector outlives the source, and has no other user meanwhile.
            let source = unsafe { SharedSource::new(shared.as_ptr().add(start), data.len()) };
            cipher.seal_from(self.first, source, &mut output, &mut []).unwrap();
            assert_eq!(&shared[at.clone()], data, "the source is left as it was");
        } else {
            // SAFETY: as above.
            let destination = unsafe { SharedDestination::new(shared.as_mut_ptr().add(start), data.len()) };
            cipher.open_to(self.first, &mut output, destination, &[]).unwrap();
            output.copy_from_slice(&shared[at.clone()]);
        }
        assert!(shared[..at.start].iter().all(|&b| b == AROUND), "bytes before the shared ones");
        assert!(shared[at.end..].iter().all(|&b| b == AROUND), "bytes behind the shared ones");
        output
    }

    /// le64(S), zero-padded, of each sector.
    fn ivs(&self) -> Vec<[u8; 16]> {
        let sectors = self.data.len() / self.size.bytes();
        let shift = if self.large { self.size.units().trailing_zeros() } else { 0 };
        (0..sectors as u64)
            .map(|nth| self.first.wrapping_add(nth.wrapping_mul(self.size.units())) >> shift)
            .map(|number| u128::from(number).to_le_bytes())
            .collect()
    }
}

fn paths() -> impl Iterator<Item = CpuPath> {
    CpuPath::ALL.into_iter().filter(|path| path.is_available())
}

fn cases(keys: &'static [usize]) -> impl Strategy<Value = Case> {
    let numbers =
        prop_oneof![any::<u64>(), (1u64 << 32) - 200..(1 << 32) + 8, u64::MAX - 8000..=u64::MAX, 0..9u64];
    let key = prop::sample::select(keys).prop_flat_map(|n| prop::collection::vec(any::<u8>(), n));
    let size = prop::sample::select(&[512u32, 1024, 2048, 4096, 8192, 65536][..]);
    (
        key,
        size,
        0usize..101,
        any::<bool>(),
        numbers,
        (0usize..64, 0usize..64),
        any::<[bool; 2]>(),
        any::<u64>(),
    )
        .prop_map(|(key, bytes, count, large, first, off, [aligned, in_place], seed)| {
            let size = SectorSize::new(bytes).unwrap();
            let count = count.min((1 << 18) / size.bytes());
            let mut state = seed | 1;
            let mut random = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()
            };
            let data = (0..count * size.bytes() / 8).flat_map(|_| random()).collect();
            let off = if aligned { (0, 0) } else { off };
            // The layer above only uses whole sectors.
            let first = first / size.units() * size.units();
            Case { key, size, large, first, data, off, in_place }
        })
}

/// Checks all paths against `expected`, which encrypts one sector: IV, sector.
fn check(
    case: &Case,
    spec: &str,
    expected: impl Fn(&[u8; 16], &[u8]) -> Vec<u8>,
) -> Result<(), TestCaseError> {
    let sectors = case.data.chunks(case.size.bytes());
    let want: Vec<u8> = sectors.zip(case.ivs()).flat_map(|(sector, iv)| expected(&iv, sector)).collect();
    // The last case uses the path of each direction that is fastest here.
    for path in paths().map(Some).chain([None]) {
        let cipher = case.cipher(spec, path);
        let got = case.through(&case.data, |data| cipher.encrypt(case.first, data));
        prop_assert!(
            got == want,
            "{} does not encrypt like the peer",
            path.map_or("the choice", CpuPath::name)
        );
        let back = case.through(&want, |data| cipher.decrypt(case.first, data));
        prop_assert!(
            back == case.data,
            "{} does not decrypt like the peer",
            path.map_or("the choice", CpuPath::name)
        );
        let shared = case.shared(&case.data, &*cipher, true);
        prop_assert!(
            shared == want,
            "{} does not encrypt shared memory like the peer",
            path.map_or("the choice", CpuPath::name)
        );
        let shared = case.shared(&want, &*cipher, false);
        prop_assert!(
            shared == case.data,
            "{} does not decrypt to shared memory like the peer",
            path.map_or("the choice", CpuPath::name)
        );
    }
    Ok(())
}

/// Modes in which the ciphers of both libraries are compared.
const CHAINS: [&str; 4] = ["xts", "cbc", "ctr", "ecb"];

/// Checks all paths against RustCrypto's blocks and, where libgcrypt has the cipher, its modes. The
/// key is one for XTS.
fn with_two_libraries(cipher: &str, chain: &str, mut case: Case) -> Result<(), TestCaseError> {
    let mode = match chain {
        "xts" => gcrypt::XTS,
        "cbc" => gcrypt::CBC,
        "ctr" => gcrypt::CTR,
        _ => gcrypt::ECB,
    };
    if chain != "xts" {
        case.key.truncate(case.key.len() / 2);
    }
    let spec = format!("{cipher}-{chain}-plain64");
    let plain = plain::Plain::new(cipher, chain, &case.key);
    check(&case, &spec, |iv, sector| plain.sector(iv, sector))?;
    let differ = case.key[..case.key.len() / 2] != case.key[case.key.len() / 2..];
    if let Some(gcrypt) = gcrypt::Gcrypt::new(cipher, mode, &case.key).filter(|_| differ) {
        check(&case, &spec, |iv, sector| gcrypt.sector(iv, sector))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_path_writes_the_xts_of_openssl(case in cases(&[32, 64])) {
        prop_assume!(case.key[..case.key.len() / 2] != case.key[case.key.len() / 2..]);
        check(&case, "aes-xts-plain64", |iv, sector| peers::openssl_xts(&case.key, iv, sector))?;
    }

    #[test]
    fn every_path_writes_the_xts_of_aws_lc(case in cases(&[64])) {
        check(&case, "aes-xts-plain64", |iv, sector| peers::aws_lc_xts(&case.key, iv, sector))?;
    }

    #[test]
    fn every_path_writes_the_cbc_essiv_of_openssl(case in cases(&[16, 24, 32])) {
        let salt = openssl::sha::sha256(&case.key);
        let essiv = |iv: &[u8; 16]| peers::openssl_ecb(&salt, iv);
        check(&case, "aes-cbc-essiv:sha256", |iv, sector| peers::openssl_cbc(&case.key, &essiv(iv), sector))?;
    }

    #[test]
    fn every_path_writes_the_cbc_essiv_of_aws_lc(case in cases(&[16, 24, 32])) {
        let salt = openssl::sha::sha256(&case.key);
        let essiv = |iv: &[u8; 16]| peers::openssl_ecb(&salt, iv);
        check(&case, "aes-cbc-essiv:sha256", |iv, sector| peers::aws_lc_cbc(&case.key, &essiv(iv), sector))?;
    }

    /// No kernel of the tables has these two ciphers.
    #[test]
    fn aria_and_sm4_are_those_of_openssl(case in cases(&[16, 24, 32])) {
        let (cipher, key) = match case.key.len() {
            16 if case.first % 2 == 0 => ("sm4", "SM4-CBC".to_owned()),
            n => ("aria", format!("ARIA-{}-CBC", n * 8)),
        };
        let spec = format!("{cipher}-cbc-plain64");
        check(&case, &spec, |iv, sector| peers::openssl_named(&key, &case.key, iv, sector))?;
    }

    #[test]
    fn all_paths_agree_where_no_peer_has_the_key_size(case in cases(&[48])) {
        let portable = case.cipher("aes-xts-plain64", CpuPath::Portable);
        let want = case.through(&case.data, |data| portable.encrypt(case.first, data));
        for path in paths() {
            let cipher = case.cipher("aes-xts-plain64", path);
            let got = case.through(&case.data, |data| cipher.encrypt(case.first, data));
            prop_assert!(got == want, "{}", path.name());
            let back = case.through(&want, |data| cipher.decrypt(case.first, data));
            prop_assert!(back == case.data, "{}", path.name());
            prop_assert!(case.shared(&case.data, &*cipher, true) == want, "{}: shared", path.name());
            prop_assert!(case.shared(&want, &*cipher, false) == case.data, "{}: shared", path.name());
        }
    }

    #[test]
    fn splitting_a_request_at_a_sector_changes_nothing(
        case in cases(&[32]), spec in prop::sample::select(&["aes-xts-plain64", "aes-cbc-essiv:sha256"][..]), at in any::<prop::sample::Index>(),
    ) {
        for path in paths() {
            let cipher = case.cipher(spec, path);
            let whole = case.through(&case.data, |data| cipher.encrypt(case.first, data));
            let sectors = at.index(case.data.len() / case.size.bytes() + 1);
            let parts = case.through(&case.data, |data| {
                let (head, tail) = data.split_at(sectors * case.size.bytes());
                cipher.encrypt(case.first, head);
                cipher.encrypt(case.first.wrapping_add(sectors as u64 * case.size.units()), tail);
            });
            prop_assert!(whole == parts, "{}", path.name());
        }
    }
}

proptest! {
    // RustCrypto's Twofish is slow.
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn twofish_is_that_of_two_libraries(
        case in cases(&[32, 48, 64]), chain in prop::sample::select(&CHAINS[..]),
    ) {
        with_two_libraries("twofish", chain, case)?;
    }

    #[test]
    fn serpent_is_that_of_two_libraries(
        case in cases(&[32, 48, 64]), chain in prop::sample::select(&CHAINS[..]),
    ) {
        with_two_libraries("serpent", chain, case)?;
    }

    #[test]
    fn camellia_is_that_of_two_libraries(
        case in cases(&[32, 48, 64]), chain in prop::sample::select(&CHAINS[..]),
    ) {
        with_two_libraries("camellia", chain, case)?;
    }

    /// libgcrypt has no ARIA; OpenSSL's is above.
    #[test]
    fn aria_is_that_of_a_library(case in cases(&[32, 48, 64]), chain in prop::sample::select(&CHAINS[..])) {
        with_two_libraries("aria", chain, case)?;
    }

    #[test]
    fn sm4_is_that_of_two_libraries(case in cases(&[32]), chain in prop::sample::select(&CHAINS[..])) {
        with_two_libraries("sm4", chain, case)?;
    }

    /// libgcrypt has no CAST-256.
    #[test]
    fn cast6_is_that_of_a_library(
        case in cases(&[32, 40, 48, 56, 64]), chain in prop::sample::select(&CHAINS[..]),
    ) {
        with_two_libraries("cast6", chain, case)?;
    }
}
