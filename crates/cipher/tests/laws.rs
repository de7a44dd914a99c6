//! Laws for every cipher, on every CPU path, also over sector sizes that no kernel has.

use std::sync::Arc;

use proptest::prelude::*;
use underseal_cipher::{
    BuildOptions, CipherSpec, CpuPath, InOutBuf, Key, SectorCipher, SectorSize, SharedDestination,
    SharedSource, build_with,
};

/// Specifications with the key's length; the last field is true for 512-byte sectors only.
const SPECS: [(&str, usize, bool); 53] = [
    ("aes-xts-plain64", 64, false),
    ("aes-xts-plain", 32, false),
    ("aes-xts-essiv:sha256", 48, false),
    ("aes-xts-eboiv", 64, false),
    ("aes-cbc-essiv:sha256", 32, false),
    ("aes-cbc-essiv:sha3-256", 16, false),
    ("aes-cbc-benbi", 24, false),
    ("aes-cbc-eboiv", 32, false),
    ("aes-cbc-elephant", 64, false),
    ("aes-cbc-tcw", 64, true),
    ("aes-cbc-lmk", 32, true),
    ("aes:64-cbc-lmk", 2080, true),
    ("aes:2-cbc-elephant", 64, false),
    ("aes:8-xts-plain64", 512, false),
    ("aes:2-cbc-tcw", 96, true),
    ("aes-ecb", 32, false),
    ("aes-ctr-plain64be", 32, false),
    ("aes-pcbc-plain64", 16, false),
    ("capi:cts(cbc(aes))-plain64", 32, false),
    ("aes-lrw-benbi", 48, false),
    ("aes-hctr2-plain64", 32, false),
    ("aes-hctr2-plain64", 16, false),
    ("aes-hctr2-benbi", 24, false),
    ("xchacha20,aes-adiantum-plain64", 32, false),
    ("xchacha12,aes-adiantum-plain64", 32, false),
    ("xchacha20,aes-adiantum-benbi", 32, false),
    ("capi:chacha20-plain64", 32, false),
    ("capi:xchacha20-plain64be", 32, false),
    ("capi:xchacha12-benbi", 32, false),
    ("capi:arc4-plain64", 16, false),
    ("serpent-xts-plain64", 64, false),
    ("serpent-lrw-benbi", 32, false),
    ("serpent-ctr-plain64be", 24, false),
    ("serpent-pcbc-plain64", 16, false),
    ("capi:cts(cbc(serpent))-plain64", 32, false),
    ("twofish-cbc-tcw", 48, true),
    ("twofish-xts-plain64", 64, false),
    ("twofish-lrw-benbi", 40, false),
    ("twofish-pcbc-plain64", 16, false),
    ("capi:cts(cbc(twofish))-plain64", 24, false),
    ("camellia-xts-essiv:sha256", 64, false),
    ("kuznyechik-xts-plain64", 64, false),
    ("aria-xts-plain64", 64, false),
    ("sm4-xts-plain64", 32, false),
    ("sm4-cbc-essiv:md5", 16, false),
    ("cast6-cbc-plain64", 32, false),
    ("cast5-cbc-plain64be", 16, false),
    ("blowfish-cbc-essiv:sha256", 32, false),
    ("blowfish:2-cbc-tcw", 56, true),
    ("des-cbc-plain64", 8, false),
    ("des3_ede-cbc-plain64", 24, false),
    ("xtea-cbc-null", 16, false),
    ("cipher_null-ecb", 0, false),
];

struct Case {
    name: &'static str,
    size: SectorSize,
    first: u64,
    data: Vec<u8>,
    ciphers: Vec<(CpuPath, Arc<dyn SectorCipher>)>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} from {}, {} bytes", self.name, self.size.bytes(), self.first, self.data.len())
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let numbers =
        prop_oneof![any::<u64>(), (1u64 << 32) - 200..(1 << 32) + 8, u64::MAX - 8000..=u64::MAX, 0..9u64];
    let sizes = prop::sample::select(&[512u32, 1024, 2048, 4096, 8192, 16384, 32768, 65536][..]);
    (prop::sample::select(&SPECS[..]), sizes, any::<bool>(), numbers, 1usize..40, any::<u64>()).prop_map(
        |((name, key_bytes, only_512), bytes, iv_large_sectors, first, count, seed)| {
            let sector_size = SectorSize::new(if only_512 { 512 } else { bytes }).unwrap();
            let count = count.min((1 << 17) / sector_size.bytes()).max(1);
            let mut state = seed | 1;
            let mut random = |bytes: usize| -> Vec<u8> {
                let step = |_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state.to_le_bytes()
                };
                let mut all: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(step).collect();
                all.truncate(bytes);
                all
            };
            let key = Key::new(&random(key_bytes)).unwrap();
            let spec: CipherSpec = name.parse().unwrap();
            let build = |cpu| {
                let options = BuildOptions {
                    spec: &spec,
                    key: &key,
                    sector_size,
                    iv_large_sectors,
                    integrity: None,
                    cpu: Some(cpu),
                };
                (cpu, build_with(&options).unwrap())
            };
            let ciphers = CpuPath::ALL.into_iter().filter(|path| path.is_available()).map(build).collect();
            let first = first / sector_size.units() * sector_size.units();
            Case { name, size: sector_size, first, data: random(count * sector_size.bytes()), ciphers }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn decryption_undoes_encryption_on_any_path(case in cases()) {
        let mut of_all: Option<Vec<u8>> = None;
        for (path, cipher) in &case.ciphers {
            let mut out = vec![0; case.data.len()];
            cipher.encrypt(case.first, InOutBuf::new(&case.data, &mut out).unwrap());
            prop_assert!(cipher.is_null() || out != case.data);
            let mut in_place = case.data.clone();
            cipher.encrypt(case.first, (&mut in_place[..]).into());
            prop_assert!(in_place == out, "{}: in place", path.name());
            let mut back = vec![0; out.len()];
            cipher.decrypt(case.first, InOutBuf::new(&out, &mut back).unwrap());
            prop_assert!(back == case.data, "{}", path.name());
            cipher.decrypt(case.first, (&mut in_place[..]).into());
            prop_assert!(in_place == case.data, "{}: in place", path.name());
            let (mut shared, mut ours) = (case.data.clone(), vec![0; out.len()]);
            // SAFETY: the vector stays, and nothing else uses it meanwhile.
            let source = unsafe { SharedSource::new(shared.as_ptr(), shared.len()) };
            cipher.seal_from(case.first, source, &mut ours, &mut []).unwrap();
            prop_assert!(ours == out, "{}: out of shared memory", path.name());
            shared.fill(0);
            // SAFETY: as above.
            let destination = unsafe { SharedDestination::new(shared.as_mut_ptr(), shared.len()) };
            cipher.open_to(case.first, &mut ours, destination, &[]).unwrap();
            prop_assert!(shared == case.data, "{}: into shared memory", path.name());
            let first = of_all.get_or_insert_with(|| out.clone());
            prop_assert!(*first == out, "{} differs from the first path", path.name());
        }
    }

    #[test]
    fn splitting_a_request_at_a_sector_changes_nothing(case in cases(), at in any::<prop::sample::Index>()) {
        let sectors = at.index(case.data.len() / case.size.bytes() + 1);
        let second = case.first.wrapping_add(sectors as u64 * case.size.units());
        for (path, cipher) in &case.ciphers {
            let mut whole = case.data.clone();
            cipher.encrypt(case.first, (&mut whole[..]).into());
            let mut parts = case.data.clone();
            let (head, tail) = parts.split_at_mut(sectors * case.size.bytes());
            cipher.encrypt(case.first, head.into());
            cipher.encrypt(second, tail.into());
            prop_assert!(whole == parts, "{}", path.name());
        }
    }
}

/// Requests whose sectors are hashed while others are encrypted or decrypted: batches, and
/// remainders.
#[test]
fn lmk_of_many_sectors_is_that_of_each() {
    const COUNTS: [usize; 9] = [63, 64, 65, 95, 96, 97, 128, 133, 160];
    for (name, key_bytes) in
        [("aes-cbc-lmk", 16), ("aes-cbc-lmk", 24), ("aes-cbc-lmk", 32), ("aes:64-cbc-lmk", 65 * 32)]
    {
        let spec: CipherSpec = name.parse().unwrap();
        let key: Vec<u8> =
            (0..key_bytes).map(|n: u32| u8::try_from((n * 37 + n / 7) % 251).unwrap()).collect();
        let key = Key::new(&key).unwrap();
        for path in CpuPath::ALL.into_iter().filter(|path| path.is_available()) {
            let cipher = build_with(&BuildOptions {
                spec: &spec,
                key: &key,
                sector_size: SectorSize::S512,
                iv_large_sectors: false,
                integrity: None,
                cpu: Some(path),
            })
            .unwrap();
            for (first, count) in COUNTS.map(|count| (u64::MAX - 70, count)).into_iter().chain([(3, 128)]) {
                let what = format!("{name}, {key_bytes} bytes, {count} sectors on {}", path.name());
                let clear: Vec<u8> =
                    (0..count * 512).map(|n| u8::try_from((n * n / 3 + n / 512) % 251).unwrap()).collect();
                let mut each = clear.clone();
                for (nth, sector) in each.chunks_mut(512).enumerate() {
                    cipher.encrypt(first.wrapping_add(nth as u64), sector.into());
                }
                let mut out = vec![0; clear.len()];
                cipher.encrypt(first, InOutBuf::new(&clear, &mut out).unwrap());
                assert!(out == each, "{what}");
                let mut back = vec![0; clear.len()];
                cipher.decrypt(first, InOutBuf::new(&out, &mut back).unwrap());
                assert!(back == clear, "{what}, back");
                cipher.decrypt(first, (&mut out[..]).into());
                assert!(out == clear, "{what}, back in place");
                cipher.encrypt(first, (&mut out[..]).into());
                assert!(out == each, "{what}, in place");
            }
        }
    }
}
