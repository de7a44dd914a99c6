//! `whole-request`: one call of the cipher for each 512-byte sector, compared with one call for the
//! whole request.

use std::sync::Arc;
use std::time::Duration;

use underseal_bench::{Effort, Subject, rates};
use underseal_cipher::{InOutBuf, SectorCipher, SectorSize};
use underseal_datapath::Policy;

use super::{Experiment, Measured};
use crate::engine::{self, EngineLoad, EngineSpec};
use crate::load::{Load, LoadEnd, LoadTarget, Pattern};
use crate::rounds::{Contenders, interleaved};
use crate::volumes::{self, XTS};
use crate::{AnswerFigure, Cell, Goal, Lab, Panel, Range, Result, Unit};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "whole-request",
    question: "What is gained when the crypto layer gets whole requests and makes the IVs itself?",
    source: "RFC v5 \"IV generation algorithms for dm-crypt\", dm-devel and linux-crypto, April 2017",
    setup: "DragonBoard 410c, 1 GiB volume, essiv(cbc(aes)) in software; dd, fio, bonnie++",
    figures: "sequential read -0.13%, write +0.09%; random read +0.36%, write +0.01% (it aimed at hardware engines, and at \
              no loss in software)",
    rounds: 9,
    run,
};

/// The IV generators of the RFC: name, cipher, and the key size in bytes if the cipher's own does
/// not fit.
const CIPHERS: [(&str, &str, Option<usize>); 6] = [
    ("plain64", "aes-xts-plain64", None),
    ("essiv", "aes-cbc-essiv:sha256", None),
    ("benbi", "aes-lrw-benbi", None),
    ("lmk", "aes-cbc-lmk", None),
    // A cipher key, and TCW's own part: an IV seed of 16 bytes and whitening of 16.
    ("tcw", "aes-cbc-tcw", Some(32 + 32)),
    ("64 keys", "aes:64-cbc-lmk", None),
];

/// Bytes of a request, which has 128 sectors.
const REQUEST: usize = 64 << 10;
const SECTOR: usize = 512;

const EACH: &str = "a call for each sector";
const WHOLE: &str = "a call for the request";

fn run(lab: &Lab<'_>, rounds: usize) -> Result<Measured> {
    let device = volumes::ram(lab.bytes(64 << 20))?;
    let mut alone = Vec::new();
    let mut path = Vec::new();
    let loads =
        [(100, Pattern::Sequential), (100, Pattern::Random), (0, Pattern::Sequential), (0, Pattern::Random)];
    for (name, spec, key) in CIPHERS {
        let cipher = match key {
            None => volumes::cipher(spec, 512)?,
            Some(len) => volumes::keyed(&spec.parse()?, len, 0, 512)?,
        };
        let each: Arc<dyn SectorCipher> = Arc::new(SectorBySector(cipher.clone()));
        (lab.progress)(&format!("whole-request: {name}, the cipher alone"));
        alone.push([false, true].map(|encrypt| quotients(lab, rounds, encrypt, &*each, &*cipher)));
        let volume = |cipher| {
            Ok::<_, crate::Error>(LoadTarget::Volume(volumes::over(cipher, &device)?, Policy::INLINE))
        };
        let ways = Contenders(vec![(EACH, volume(each)?), (WHOLE, volume(cipher)?)]);
        let loads = loads.map(|(reads, pattern)| {
            let load = Load { pattern, ..Load::new(REQUEST, reads, LoadEnd::Time(lab.slice(30))) };
            (name.to_owned(), load)
        });
        let grid = ways.measure(lab, rounds, &format!("whole-request: {name}"), &loads)?;
        path.push([0, 1, 2, 3].map(|load| grid.ratio(WHOLE, EACH, load, |seen| seen.mb_per_s())));
    }
    let mut cipher_panel = Panel::new(
        "The cipher alone: a call for the request over a call for each sector",
        Unit::Times,
        ["decrypt", "encrypt"],
    );
    let mut path_panel = Panel::new(
        "Through the whole path, in memory: a call for the request over a call for each sector",
        Unit::Times,
        ["sequential read", "random read", "sequential write", "random write"],
    );
    for ((name, ..), (alone, path)) in CIPHERS.into_iter().zip(alone.iter().zip(&path)) {
        cipher_panel = cipher_panel.row(name, alone.map(Cell::from));
        path_panel = path_panel.row(name, path.map(Cell::from));
    }
    let engine = through_an_engine(lab, rounds)?;
    let [decrypt, encrypt] = alone[0];
    let essiv = path[1];
    let published = |what: &str, range: Range, percent: f64| {
        AnswerFigure::new(what, Unit::Times, range).published(1.0 + percent / 100.0)
    };
    Ok(Measured {
        setup: vec![
            format!(
                "requests of {} KiB in sectors of {SECTOR} bytes, in memory, inline; the same code, called sector by \
                 sector or once",
                REQUEST >> 10
            ),
            "64 keys: loop-AES, a key for each sector number modulo 64, chosen inside the call".into(),
            "an engine in software: one thread that is handed jobs, as the asynchronous ciphers of the RFC".into(),
            "one call makes the IVs of all sectors together and has several sectors in the processor's pipeline at a time"
                .into(),
        ],
        answer: format!(
            "With AES-XTS one call for the request is {} as fast in the cipher, and {} on the whole path (reads).",
            Unit::Times.show(decrypt.median),
            Unit::Times.show(path[0][0].median),
        ),
        findings: vec![
            AnswerFigure::new("XTS decryption, 512 B sectors", Unit::Times, decrypt).goal(Goal::AtLeast(3.0)),
            AnswerFigure::new("XTS encryption, 512 B sectors", Unit::Times, encrypt).goal(Goal::AtLeast(3.0)),
            AnswerFigure::new("XTS reads through an engine in software, a job a request over a job a sector", Unit::Times, engine),
            published("essiv, sequential read", essiv[0], -0.134),
            published("essiv, random read", essiv[1], 0.358),
            published("essiv, sequential write", essiv[2], 0.091),
            published("essiv, random write", essiv[3], 0.010),
        ],
        panels: vec![cipher_panel, path_panel],
    })
}

/// The cost of a job for each sector, where crypto is handed over to an engine.
fn through_an_engine(lab: &Lab<'_>, rounds: usize) -> Result<Range> {
    let cipher = volumes::cipher(XTS, 512)?;
    // An engine as fast as this processor, on a separate thread.
    let spec =
        EngineSpec { fixed: Duration::ZERO, bandwidth: f64::INFINITY, depth: 256, restart: Duration::ZERO };
    let bytes = lab.bytes(64 << 20);
    let seen = interleaved(lab, rounds, "whole-request: through an engine", 2, |nth| {
        let max_sectors = (nth == 0).then_some(1);
        let load = EngineLoad { request: REQUEST, depth: 1, encrypts: false, max_sectors, bytes };
        engine::run(spec, &cipher, load)
    })?;
    Ok(Range::of_ratios(&seen[1], &seen[0]))
}

/// Throughput of one call divided by that of many calls, round by round, in the processor's cache.
fn quotients(
    lab: &Lab<'_>,
    rounds: usize,
    encrypt: bool,
    each: &dyn SectorCipher,
    whole: &dyn SectorCipher,
) -> Range {
    let subject = |cipher| {
        let call = move |bytes: &mut [u8]| crypt(cipher, encrypt, bytes);
        Subject { bytes: REQUEST, call: Box::new(call) }
    };
    let effort = Effort { rounds: lab.rounds(rounds), slice: lab.slice(8) };
    let mut buffer = vec![0x5a; REQUEST];
    let rates = rates(effort, &mut [subject(each), subject(whole)], &mut buffer);
    Range::of_ratios(&rates[1], &rates[0])
}

fn crypt(cipher: &dyn SectorCipher, encrypt: bool, bytes: &mut [u8]) {
    if encrypt { cipher.encrypt(0, bytes.into()) } else { cipher.decrypt(0, bytes.into()) }
}

/// A cipher that is called for each sector, as dm-crypt calls the crypto API.
struct SectorBySector(Arc<dyn SectorCipher>);

impl SectorBySector {
    fn each(&self, mut first: u64, mut data: InOutBuf<'_, '_, u8>, call: impl Fn(u64, InOutBuf<'_, '_, u8>)) {
        let size = self.0.sector_size();
        while !data.is_empty() {
            let (sector, rest) = data.split_at(size.bytes());
            call(first, sector);
            first = first.wrapping_add(size.units());
            data = rest;
        }
    }
}

impl SectorCipher for SectorBySector {
    fn sector_size(&self) -> SectorSize {
        self.0.sector_size()
    }

    fn encrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.each(first, data, |first, sector| self.0.encrypt(first, sector));
    }

    fn decrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.each(first, data, |first, sector| self.0.decrypt(first, sector));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sector_by_sector_gives_the_same_bytes() {
        for (name, spec, key) in CIPHERS {
            let whole = match key {
                None => volumes::cipher(spec, 512).unwrap(),
                Some(len) => volumes::keyed(&spec.parse().unwrap(), len, 0, 512).unwrap(),
            };
            let each = SectorBySector(whole.clone());
            let plain: Vec<u8> = (0..251).cycle().take(SECTOR * 130).collect();
            let (mut one, mut many) = (plain.clone(), plain.clone());
            whole.encrypt(77, (&mut one[..]).into());
            each.encrypt(77, (&mut many[..]).into());
            assert!(one == many && one != plain, "{name}");
            whole.decrypt(77, (&mut many[..]).into());
            each.decrypt(77, (&mut one[..]).into());
            assert!(one == plain && many == plain, "{name}");
        }
    }
}
