//! `inline`: the cost of handing requests to a work queue, and the cost of a path without one.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use sha2::{Digest, Sha256};
use underseal_datapath::Policy;
use underseal_volume::DispatchFlags;

use super::{Experiment, Measured};
use crate::load::{Load, LoadEnd, LoadTarget};
use crate::rounds::{Contenders, Grid, interleaved, size};
use crate::stream::{Bare, RequestStream, queue};
use crate::volumes::{self, NULL, XTS};
use crate::{AnswerFigure, Error, ErrorKind, Goal, Lab, Panel, Range, Result, Unit};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "inline",
    question: "How much of a RAM disk's speed is left when requests are not handed to a work queue?",
    source: "RFC \"dm-crypt: add DM_CRYPT_FORCE_INLINE\", dm-devel, June 2020; later no_read_workqueue and \
             no_write_workqueue",
    setup: "4 GiB RAM disk, null cipher, dd bs=4k iflag=direct | sha256sum; 4 cores at 2.8 GHz, virtual; Linux 5.8-rc1",
    figures: "RAM disk 202 MB/s, dm-crypt 80.7 MB/s, dm-crypt inline 201 MB/s; three equal hashes",
    rounds: 7,
    run,
};

const PLAIN: &str = "plain";
const QUEUE: &str = "work queue";
const INLINE: &str = "inline";
const ADAPTIVE: &str = "adaptive";

/// The size of the published experiment's requests, in bytes.
const BLOCK: usize = 4096;

fn run(lab: &Lab<'_>, rounds: usize) -> Result<Measured> {
    let bytes = lab.bytes(64 << 20);
    let device = volumes::memory_file(bytes)?;
    let null = volumes::mapping(NULL, 512, &device)?;
    let real = volumes::mapping(XTS, 4096, &device)?;
    let kernel = Policy::from_flags(DispatchFlags::default());
    let ways = |mapping: &Arc<_>| {
        let volume = |policy| LoadTarget::Volume(Arc::clone(mapping), policy);
        Contenders(vec![
            (PLAIN, LoadTarget::Bare(device.clone())),
            (QUEUE, volume(kernel)),
            (INLINE, volume(Policy::INLINE)),
            (ADAPTIVE, volume(Policy::ADAPTIVE)),
        ])
    };

    let nulls = ways(&null);
    let mut hashes = Vec::new();
    let piped = interleaved(lab, rounds, "inline: 4k reads into a hash", nulls.0.len(), |way| {
        let (rate, hash) = hashed(&nulls.0[way].1, bytes)?;
        hashes.push(hash);
        Ok(rate)
    })?;
    if hashes.iter().any(|hash| *hash != hashes[0]) {
        return Err(Error::new(ErrorKind::Wrong, "the ways did not read the same bytes"));
    }
    let [plain, queued, inline, adaptive] = &piped[..] else { unreachable!("four ways were measured") };

    let slice = LoadEnd::Time(lab.slice(120));
    let bare =
        nulls.measure(lab, rounds, "inline: 4k reads", &[("4k".into(), Load::new(BLOCK, 100, slice))])?;
    let loads = |reads| {
        let sizes = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
        sizes.map(|bytes| (size(bytes), Load::new(bytes, reads, LoadEnd::Time(lab.slice(60)))))
    };
    let reals = ways(&real);
    let reads = reals.measure(lab, rounds, "inline: reads under AES", &loads(100))?;
    let writes = reals.measure(lab, rounds, "inline: writes under AES", &loads(0))?;

    let of_plain = |rates: &[f64]| Range::of_ratios(rates, plain);
    let nanos = |way| bare.range(way, 0, |seen| 1e9 / seen.iops());
    let over_plain = of_plain(inline);
    let over_queue = Range::of_ratios(inline, queued);
    let rate = |what, rates: &[f64], published| {
        AnswerFigure::new(what, Unit::MbPerS, Range::of(rates.iter().copied())).published(published)
    };
    Ok(Measured {
        setup: vec![
            format!(
                "a file of {} MiB in memory, a system call a request, read whole through a pipe into SHA-256 on another \
                 thread; null cipher; one request at a time; all four ways gave the same hash",
                bytes >> 20
            ),
            "plain is the device's channel without a volume; the work queue is what dm-crypt does without flags".into(),
            "then the same without pipe and hash, and reads and writes under AES-256-XTS with 4 KiB sectors".into(),
        ],
        answer: format!(
            "Inline reads reach {} of the plain disk's speed and {} the work queue's.",
            Unit::Part.show(over_plain.median),
            Unit::Times.show(over_queue.median),
        ),
        findings: vec![
            AnswerFigure::new("inline over plain, into a hash", Unit::Part, over_plain)
                .published(201.0 / 202.0)
                .goal(Goal::AtLeast(0.97)),
            AnswerFigure::new("inline over the work queue, into a hash", Unit::Times, over_queue)
                .published(201.0 / 80.7)
                .goal(Goal::AtLeast(2.2)),
            AnswerFigure::new("inline over the work queue, nothing but reads", Unit::Times, mb(&bare, INLINE, QUEUE))
                .goal(Goal::AtLeast(2.2)),
            AnswerFigure::new("inline over plain, nothing but reads", Unit::Part, mb(&bare, INLINE, PLAIN)),
            rate("plain", plain, 202.0),
            rate("work queue", queued, 80.7),
            rate("inline", inline, 201.0),
            AnswerFigure::new("a bare 4k read", Unit::Nanos, nanos(PLAIN)),
            AnswerFigure::new("an inline 4k read", Unit::Nanos, nanos(INLINE)),
        ],
        panels: vec![
            Panel::new("4k reads into a hash, null cipher, as part of plain", Unit::Part, [PLAIN, QUEUE, INLINE, ADAPTIVE])
                .row("4k", [
                    (of_plain(plain), 1.0).into(),
                    (of_plain(queued), 80.7 / 202.0).into(),
                    (of_plain(inline), 201.0 / 202.0).into(),
                    of_plain(adaptive).into(),
                ] as [crate::Cell; 4]),
            bare.panel("Nothing but 4k reads, null cipher", Unit::MbPerS, |seen| seen.mb_per_s()),
            reads.panel("Reads under AES-256-XTS, one at a time", Unit::MbPerS, |seen| seen.mb_per_s()),
            writes.panel("Writes under AES-256-XTS, one at a time", Unit::MbPerS, |seen| seen.mb_per_s()),
        ],
    })
}

fn mb(grid: &Grid, over: &str, under: &str) -> Range {
    grid.ratio(over, under, 0, |seen| seen.mb_per_s())
}

/// `dd bs=4k | sha256sum`: the rate in MB/s, and the hash.
fn hashed(target: &LoadTarget, bytes: u64) -> Result<(f64, [u8; 32])> {
    let (reader, writer) = pipe().map_err(Error::system("the system gives no pipe"))?;
    let start = Instant::now();
    thread::scope(|scope| {
        let hash = scope.spawn(move || sha256(reader));
        match target {
            LoadTarget::Bare(device) => copy(Bare::open(&**device, 1, BLOCK)?, bytes, writer)?,
            LoadTarget::Volume(mapping, policy) => {
                mapping.set_policy(*policy)?;
                copy(queue(mapping, 1, BLOCK)?, bytes, writer)?;
            }
        }
        let died = || Error::new(ErrorKind::Wrong, "the hash's thread panicked");
        let hash = hash.join().map_err(|_| died())?.map_err(Error::system("the pipe broke"))?;
        Ok((bytes as f64 / 1e6 / start.elapsed().as_secs_f64(), hash))
    })
}

fn copy(mut stream: impl RequestStream, bytes: u64, mut to: PipeWriter) -> Result<()> {
    for offset in (0..bytes).step_by(BLOCK) {
        let mut done = stream.read(0, offset, BLOCK).then(|| stream.next()).flatten();
        while done.is_none() {
            stream.wait()?;
            done = stream.next();
        }
        let Some(done) = done else { continue };
        done.result?;
        let buffer = done.buffer.ok_or_else(|| Error::new(ErrorKind::Wrong, "a read without bytes"))?;
        to.write_all(&buffer).map_err(Error::system("the pipe broke"))?;
        stream.free(buffer);
    }
    Ok(())
}

fn sha256(mut from: PipeReader) -> std::io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut piece = [0; 32 << 10];
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(hash.finalize().into()),
            n => hash.update(&piece[..n]),
        }
    }
}
