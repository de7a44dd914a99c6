//! Documents written by an attacker.

use serde_json::Value;

use super::*;
use crate::reencrypt::{Ledger as _, Progress};

/// Finds every number and every word in a document, by its path.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(name, value)| leaves(value, &format!("{path}/{name}"), found))
        }
        Value::Array(items) => {
            found.push(path.into());
            items.iter().enumerate().for_each(|(i, value)| leaves(value, &format!("{path}/{i}"), found));
        }
        _ => found.push(path.into()),
    }
}

/// Documents of reencryptions of all modes at some of their stages, with the keys.
fn documents() -> Vec<(Value, VolumeKey)> {
    let mut all = Vec::new();
    let document = |header: &Header| Value::Object(header.json().clone());
    let (on, mut header, key) = disk();
    let options = BeginOptions { direction: Direction::Backward, ..change(Protection::Journal) };
    let key = begin(&on, &mut header, key, &options);
    let mut ledger = Ledger::resume(&on, &key, (OFFSET + DATA) as u64, &ResumeOptions::default()).unwrap();
    for (done, hot) in [(4096, None), (4096, Some(8192)), (8192, Some(8192)), (16384, None)] {
        ledger.record(Progress { done, hot }).unwrap();
        all.push((document(ledger.header()), same(&key)));
    }
    let device = Recorder::new(vec![0; DATA + 2 * OFFSET]);
    let new = NewVolume::prepare(device.bytes().len() as u64, &passphrase(), in_front_options()).unwrap();
    new.write_in_front(&device).unwrap();
    all.push((document(&read(&device).unwrap()), new.into_key()));
    let (on, header, key) = disk();
    let options = DecryptOptions { protection: CHECKSUM, ..DECRYPT };
    let to = Recorder::new(vec![0; OFFSET]);
    let mut header = header.export(&on, &to, &key, &options).unwrap();
    header.begin_decryption(&to, &on, &key, &options).unwrap();
    all.push((document(&header), key));
    all
}

#[test]
fn what_an_attacker_writes_is_refused_or_makes_a_volume_within_its_device() {
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random >> 16).unwrap() % below
    };
    let (mut taken, mut refused) = (0, 0);
    for (document, key) in documents() {
        let mut places = Vec::new();
        leaves(&document, "", &mut places);
        let sizes = [0, 1 << 16, (OFFSET + DATA) as u64, 1 << 30, u64::MAX];
        for _ in 0..1500 {
            let mut forged = document.clone();
            for _ in 0..=next(3) {
                let Some(place) = forged.pointer_mut(&places[next(places.len())]) else { continue };
                let numbers = [
                    "0",
                    "512",
                    "8192",
                    "262144",
                    "270336",
                    "18446744073709551104",
                    "9223372036854775296",
                    "dynamic",
                ];
                *place = match next(6) {
                    0 => numbers[next(numbers.len())].into(),
                    1 => [0u64, 1, 512, 4096, 1 << 20, 1 << 31][next(6)].into(),
                    2 => ["linear", "crypt", "forward", "backward", "encrypt", "decrypt", "reencrypt"]
                        [next(7)]
                    .into(),
                    3 => ["checksum", "journal", "none", "datashift", "datashift-checksum"][next(5)].into(),
                    4 => serde_json::json!([next(6).to_string()]),
                    _ => serde_json::json!(
                        [["in-reencryption"], ["backup-final"], ["backup-moved-segment"]][next(3)]
                    ),
                };
            }
            let Value::Object(forged) = forged else { continue };
            let Ok(metadata) = Metadata::parse(forged, 16 << 10) else { continue };
            let Ok(Some(of)) = Reencryption::parse(&metadata) else { continue };
            shape::stage(&metadata, &of);
            for data_size in sizes {
                let given =
                    shape::ShapeInput { data_size, hot_zone: None, allow_null: false, detached: true };
                // As if the attacker had the keys.
                let Ok((plan, progress)) = shape::read(&metadata, &of, &key, given) else {
                    refused += 1;
                    continue;
                };
                taken += 1;
                let volume = plan.volume(progress).unwrap();
                let ends = volume
                    .segments()
                    .iter()
                    .map(|segment| segment.lower(segment.start).unwrap().1 + segment.len);
                assert!(ends.max() <= Some(data_size), "{:?}", metadata.document);
            }
        }
    }
    assert!(taken > 100 && refused > 1000, "{taken} {refused}");
}
