//! Writes at random places.

use fastrand::Rng;

use crate::support::Scratch;

const SECTOR: usize = 512;

/// Some runs of sectors to overwrite, out of a file of new bytes for the whole volume.
pub(crate) struct Patches {
    new: Vec<u8>,
    /// First sector and number of sectors.
    runs: Vec<(usize, usize)>,
}

impl Patches {
    /// Patches for a volume of `len` bytes.
    pub(crate) fn random(rng: &mut Rng, len: usize) -> Self {
        let mut new = vec![0; len];
        rng.fill(&mut new);
        let sectors = len / SECTOR;
        let mut runs: Vec<_> = (0..2)
            .map(|_| {
                let count = 1 + rng.usize(..64);
                (rng.usize(..sectors - count), count)
            })
            .collect();
        // The ends are where offsets go wrong first.
        runs.extend([(0, 1), (sectors - 1, 1)]);
        Self { new, runs }
    }

    /// Does the writes to a copy in memory.
    pub(crate) fn apply(&self, to: &mut [u8]) {
        for (range, bytes) in self.writes() {
            to[range..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Offsets and the bytes written there.
    pub(crate) fn writes(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.runs.iter().map(|&(first, count)| {
            let (at, len) = (first * SECTOR, count * SECTOR);
            (at, &self.new[at..at + len])
        })
    }

    /// The guest's commands that do the writes to `device`.
    pub(crate) fn script(&self, scratch: &Scratch, name: &str, device: &str) -> String {
        scratch.file(name, &self.new);
        let dd = |(first, count): &(usize, usize)| {
            format!(
                "dd if={name} of={device} bs={SECTOR} skip={first} seek={first} count={count} conv=notrunc,fsync \
                 status=none\n"
            )
        };
        self.runs.iter().map(dd).collect()
    }
}
