//! A round: the properties that a seed decides, and the threads.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use underseal_cipher::{Key, SectorSize, build};
use underseal_datapath::{Mapping, Queue, QueueOptions, Request};
use underseal_device::{Device, RamDevice};
use underseal_device_lab::{FaultControl, FaultDevice, TaggedDevice};
use underseal_volume::{Segment, Volume};

use super::dice::Dice;
use super::director::direct;
use super::layers::{Below, Layer, Layers};
use super::lower::{Lower, Place, ZONE};
use super::player::Player;
use super::rewriter::Rewriter;
use super::site::{Site, Sums};
use super::toy::Toy;
use super::zones;

/// The time without progress after which the process ends.
const HANGS: Duration = Duration::from_secs(240);

/// Bytes of a device for integrity volumes' metadata: more than they need.
const META: u64 = 4 << 20;

/// The first cipher is local, the others are not.
pub(crate) const CIPHERS: [(&str, u8); 4] = [
    ("aes-xts-plain64", 64),
    ("aes-cbc-essiv:sha256", 32),
    ("xchacha12,aes-adiantum-plain64", 32),
    ("aes-hctr2-plain64", 32),
];

/// The properties of a round, by the seed.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) device: Lower,
    pub(crate) sector: u32,
    /// The unit of requests: the sector, or less.
    pub(crate) block: u32,
    pub(crate) threads: u64,
    pub(crate) queue: QueueOptions,
    /// The options of every second player, which uses another export's.
    pub(crate) other: QueueOptions,
    pub(crate) size: u64,
    /// Bytes at the front whose blocks belong to the players in turn.
    pub(crate) shared: u64,
    /// The cipher of the volume's second half, and its key's length.
    pub(crate) second: (&'static str, u8),
    /// Bytes at the end that all players write, where the volume promises that each block then has
    /// the contents of one write.
    pub(crate) hot: u64,
    pub(crate) discards: bool,
    /// True when requests fail.
    pub(crate) faults: bool,
    /// True when the device has a volatile cache, and its power is cut.
    pub(crate) cache: bool,
    /// Tuple bytes of the toy cipher; 0 for other ciphers.
    pub(crate) tags: u32,
    /// Integrity volumes under the volume, with real ciphers or without.
    pub(crate) layer: Option<Layer>,
    /// True when the volume, of one segment, is reencrypted again and again; the state lies on the
    /// second device.
    pub(crate) rewrites: bool,
    /// True when a LUKS2 header has the progress.
    pub(crate) luks: bool,
}

/// The lower devices of a round, and the control of their faults.
pub(crate) struct Devices {
    /// The volume's devices; empty where layers are between.
    all: Vec<Arc<dyn Device>>,
    pub(crate) layers: Option<Layers>,
    pub(crate) controls: Vec<Arc<FaultControl>>,
}

impl Devices {
    fn new(setup: &Setup, places: &[Place]) -> Self {
        let faulty = |device: Arc<dyn Device>| {
            if setup.cache {
                // Larger blocks would revert a flushed write together with a neighbour that was not
                // flushed.
                FaultDevice::with_volatile_cache(device, setup.seed, 512)
            } else {
                FaultDevice::new(device, setup.seed)
            }
        };
        let devices: Vec<FaultDevice> = places.iter().map(|place| faulty(place.device.clone())).collect();
        let metas: Vec<_> = match setup.layer {
            Some(layer) if layer.meta => {
                places.iter().map(|_| faulty(Arc::new(RamDevice::new(META)))).collect()
            }
            _ => vec![],
        };
        let controls = devices.iter().chain(&metas).map(FaultDevice::control).collect();
        let tuple = setup.layer.and_then(|layer| layer.tuple()).unwrap_or(setup.tags);
        let tagged = |device: FaultDevice| -> Arc<dyn Device> {
            match tuple {
                0 => Arc::new(device),
                tuple => Arc::new(TaggedDevice::new(Arc::new(device), setup.sector, tuple)),
            }
        };
        let all: Vec<_> = devices.into_iter().map(tagged).collect();
        match setup.layer {
            Some(layer) => {
                let mut metas = metas.into_iter().map(|meta| Arc::new(meta) as Arc<dyn Device>);
                let below = all.into_iter().map(|data| Below { data, meta: metas.next() }).collect();
                Self {
                    all: vec![],
                    layers: Some(Layers::new(layer, setup.sector.min(4096), below)),
                    controls,
                }
            }
            None => Self { all, layers: None, controls },
        }
    }

    /// The devices of the volume.
    fn of_volume(&self) -> Vec<Arc<dyn Device>> {
        self.layers.as_ref().map_or_else(|| self.all.clone(), Layers::devices)
    }

    /// Cuts the power of the devices, one after the other.
    pub(crate) fn go_off(&self, backwards: bool) {
        let mut controls: Vec<_> = self.controls.iter().collect();
        if backwards {
            controls.reverse();
        }
        controls.into_iter().for_each(|control| control.power_cut().unwrap());
    }

    pub(crate) fn go_on(&self) {
        self.controls.iter().for_each(|control| control.power_on());
    }
}

/// The state that the threads of a round share.
#[derive(Default)]
pub(crate) struct Shared {
    mapping: Mutex<Option<Arc<Mapping>>>,
    pub(crate) stop: AtomicBool,
    /// The power is being cut: a read may be from before or after.
    pub(crate) uncertain: AtomicBool,
    /// Power cuts so far: the players finish their requests.
    pub(crate) cuts: AtomicU64,
    /// How many players have done so.
    pub(crate) drained: AtomicU64,
    /// How often the power came back.
    pub(crate) restored: AtomicU64,
    /// Counts events, for all players.
    pub(crate) clock: Arc<AtomicU64>,
    /// Writes acknowledged before this time, to any player, are on stable storage.
    pub(crate) flushed: AtomicU64,
    /// The number of writes to the blocks that all players write, and whether each of these blocks
    /// was written.
    pub(crate) hot_writes: AtomicU64,
    pub(crate) hot_is_written: AtomicBool,
    pub(crate) progress: AtomicU64,
}

impl Shared {
    /// The mapping that was opened last.
    pub(crate) fn mapping(&self) -> Arc<Mapping> {
        self.mapping.lock().unwrap().clone().expect("it is open")
    }

    pub(crate) fn set_mapping(&self, mapping: Arc<Mapping>) {
        *self.mapping.lock().unwrap() = Some(mapping);
    }

    /// Notes that a flush that was submitted at this time has succeeded.
    pub(crate) fn has_flushed(&self, begun: u64) {
        self.flushed.fetch_max(begun, SeqCst);
    }
}

/// The result of a round.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Played {
    pub(crate) requests: u64,
    pub(crate) checked: u64,
    pub(crate) changes: u64,
    pub(crate) cuts: u64,
    pub(crate) reencryptions: Sums,
}

impl Setup {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let device = dice.pick(&Lower::ALL);
        let sector = dice.pick(&[512, 4096, 4096, 16384, 65536]);
        let least = if device == Lower::Direct { 4096.min(sector) } else { 512 };
        // Zones take writes in order only, and the effect of a failed write is unknown.
        let zoned = device == Lower::Zoned;
        let block = if dice.one_in(2) || zoned { sector } else { least.max(512).min(sector) };
        let threads = dice.pick(&[1, 2, 3, 4]);
        let (faults, cache) = (!zoned && dice.one_in(2), !zoned && dice.one_in(3));
        // A torn sector does not match its tag; nor do blocks of a file that are larger than
        // sectors.
        let tagged = !zoned && (sector >= 4096 || device != Lower::Direct) && Dice::of(seed, 30).one_in(4);
        let tags = if tagged { 20 } else { 0 };
        let (faults, cache) = (!tagged && faults, !tagged && cache);
        let layered = !zoned && !tagged && sector <= 4096 && (sector == 4096 || device != Lower::Direct);
        let mut layers = Dice::of(seed, 40);
        let layer = (layered && layers.one_in(3)).then(|| Layer::new(layers.clone()));
        let (faults, cache) = match layer {
            Some(_) => (layers.one_in(3), layers.below(4) > 0),
            None => (faults, cache),
        };
        // A torn block cannot be read, so no player changes a part of one.
        let block = if layer.is_some_and(|layer| layer.tears(faults, cache)) { sector } else { block };
        let shared = 128 * 1024 * u64::from(sector / 4096).max(1);
        // A torn sector is lost as a whole where its cipher is not local, as on any disk.
        let second = if faults || cache { CIPHERS[0] } else { dice.pick(&CIPHERS) };
        let rewrites = !zoned && dice.clone().one_in(2) && !tagged && layer.is_none();
        let spreads = (second != CIPHERS[0] || tagged || layer.is_some_and(|layer| layer.sealed.is_some()))
            && !rewrites;
        let keeps_apart = !zoned && !faults && !cache && (spreads || block < sector);
        let hot = if keeps_apart { 8 * u64::from(sector) } else { 0 };
        Self {
            seed,
            device,
            sector,
            block,
            threads,
            queue: QueueOptions {
                depth: dice.pick(&[1, 2, 8, 32, 128]),
                max_request: dice.pick(&[65536, 256 << 10, 1 << 20]),
            },
            other: {
                let mut dice = Dice::of(seed, 22);
                QueueOptions { depth: dice.pick(&[1, 4, 16, 64]), max_request: dice.pick(&[65536, 1 << 20]) }
            },
            size: if zoned { 16 * ZONE } else { shared + (dice.pick(&[1, 2, 4]) << 20) + hot },
            shared,
            second,
            hot,
            // A zone is emptied by a discard.
            discards: zoned || (dice.one_in(2) && layer.is_none_or(|layer| layer.discards)),
            faults,
            cache,
            tags,
            layer,
            rewrites,
            luks: rewrites && Dice::of(seed, 21).one_in(2),
        }
    }

    /// The options of a player's queue: exports differ in depth and size.
    pub(crate) fn queue_of(&self, number: u64) -> QueueOptions {
        if number.is_multiple_of(2) || self.is_zoned() { self.queue } else { self.other }
    }

    pub(crate) fn may_fail(&self) -> bool {
        self.faults || self.cache
    }

    /// True when a block whose write was cut short or failed cannot be read until it is written
    /// again.
    pub(crate) fn may_tear(&self) -> bool {
        self.layer.is_some_and(|layer| layer.tears(self.faults, self.cache))
    }

    /// True when acknowledged writes may be lost before a flush: by a power cut, or with a layer's
    /// memory after its last error.
    pub(crate) fn is_volatile(&self) -> bool {
        self.cache || (self.faults && self.layer.is_some())
    }

    pub(crate) fn is_zoned(&self) -> bool {
        self.device == Lower::Zoned
    }

    /// The range of the volume that only one player uses. Ranges do not end where sectors do.
    pub(crate) fn region(&self, number: u64) -> (u64, u64) {
        let block = u64::from(self.block);
        let blocks = (self.size - self.shared - self.hot) / block;
        let from = |number: u64| self.shared + blocks * number / self.threads * block;
        (from(number), from(number + 1))
    }

    /// The player that a byte belongs to.
    pub(crate) fn owner(&self, at: u64) -> u64 {
        if at >= self.size - self.hot {
            return u64::MAX;
        }
        if at < self.shared {
            let blocks = self.shared / u64::from(self.block);
            // The last player has the remainder.
            let number = at / u64::from(self.block);
            return if number < blocks / self.threads * self.threads {
                number % self.threads
            } else {
                self.threads - 1
            };
        }
        (0..self.threads).find(|number| at < self.region(*number).1).unwrap_or(self.threads - 1)
    }

    pub(crate) fn whole_sectors(&self, offset: u64, len: u64) -> (u64, u64) {
        let sector = u64::from(self.sector);
        (offset.next_multiple_of(sector), (offset + len) / sector * sector)
    }

    /// Two segments in reverse order, the second on the second device.
    pub(crate) fn volume(&self, key: u8) -> Volume {
        let cipher = |spec: &str, length: u8| {
            if let Some(sealed) = self.layer.and_then(|layer| layer.cipher(self.sector, key)) {
                return sealed;
            }
            let key = Key::new(&(0..length).map(|i| key ^ i).collect::<Vec<u8>>()).unwrap();
            let cipher = build(&spec.parse().unwrap(), &key, SectorSize::new(self.sector).unwrap()).unwrap();
            match self.tags {
                0 => cipher,
                tags => Arc::new(Toy { inner: cipher, tag_size: tags as usize, key: 0 }),
            }
        };
        let [first, second] = [CIPHERS[0], self.second].map(|(spec, length)| cipher(spec, length));
        let half = (self.size / 2).next_multiple_of(if self.is_zoned() { ZONE } else { 65536 });
        let lower = match () {
            () if self.is_zoned() => [ZONE, 2 * ZONE],
            () => [65536, if self.tags > 0 || self.layer.is_some() { 131_072 } else { 4096 }],
        };
        let segments = vec![
            Segment::stored(0, half, lower[0], 0, first),
            Segment::stored(half, self.size - half, lower[1], 8, second).on_device(1),
        ];
        Volume::new(segments).unwrap().with_discards(self.discards)
    }

    /// Opens a volume on its devices.
    pub(crate) fn open(&self, volume: Volume, devices: &Devices) -> Arc<Mapping> {
        let mapping = Mapping::over(volume, devices.of_volume()).unwrap();
        let mapping = mapping.with_sectors(SectorSize::new(self.sector).unwrap());
        let mapping = mapping.with_block(self.block).unwrap();
        assert_eq!(mapping.block(), self.block, "{self}");
        Arc::new(mapping)
    }

    /// Plays for a time.
    ///
    /// # Panics
    /// When the volume did not behave as a disk.
    pub(crate) fn play(&self, folder: &Path, time: Duration) -> Played {
        let places: Vec<Place> = (0..2).map(|number| Place::new(self, folder, number)).collect();
        let devices = Devices::new(self, &places);
        let site = self.rewrites.then(|| Arc::new(Site::new(self, &devices.all)));
        let volume = match &site {
            Some(site) => site.open().unwrap().with_discards(self.discards),
            None => self.volume(1),
        };
        let shared = Shared::default();
        shared.set_mapping(self.open(volume, &devices));
        if self.tags > 0 || self.layer.is_some() {
            wipe(&shared.mapping());
        }
        let mut played = Played::default();
        let result = thread::scope(|scope| {
            scope.spawn(|| watch(self, &shared));
            let players: Vec<_> = (0..self.threads)
                .map(|number| {
                    let (mapping, shared) = (shared.mapping(), &shared);
                    scope.spawn(move || {
                        let play = || match self.is_zoned() {
                            true => zones::play(self, shared, &mapping, number),
                            false => Player::new(self, shared, mapping, number).play(),
                        };
                        let result = catch_unwind(AssertUnwindSafe(play));
                        shared.stop.store(true, SeqCst);
                        result
                    })
                })
                .collect();
            let directed = catch_unwind(AssertUnwindSafe(|| {
                let rewriter = site.clone().map(Rewriter::new);
                direct(self, &shared, rewriter, &devices, Instant::now() + time)
            }));
            let _ = shared.mapping().resume();
            devices.controls.iter().for_each(|control| control.clear());
            devices.go_on();
            shared.stop.store(true, SeqCst);
            let mut result = directed.map(|(changes, cuts)| (played.changes, played.cuts) = (changes, cuts));
            for player in players {
                match player.join().unwrap() {
                    Ok((checked, requests)) => {
                        played.checked += checked;
                        played.requests += requests;
                    }
                    Err(panic) => result = Err(panic),
                }
            }
            shared.progress.store(u64::MAX, SeqCst);
            result
        });
        if let Err(panic) = result {
            eprintln!("failed: {self}");
            site.iter().for_each(|site| eprintln!("reencryption: {site}"));
            resume_unwind(panic);
        }
        played.reencryptions = site.map(|site| site.sums()).unwrap_or_default();
        let stats = shared.mapping().stats();
        assert_eq!((stats.in_flight, stats.queues, stats.backlog.requests), (0, 0, 0), "{self}");
        assert_eq!(stats.backlog.bytes, 0, "{self}");
        if let Some(layers) = &devices.layers {
            assert!(self.may_tear() || layers.mismatches() == 0, "{self}: a tag did not fit");
            drop(shared.mapping.lock().unwrap().take());
            assert!(layers.close(), "{self}: what nobody uses is left clean");
        }
        played
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--round {}: {self:?}", self.seed)
    }
}

/// Zeros the volume: blocks that were never written have no valid tags.
fn wipe(mapping: &Arc<Mapping>) {
    let mut queue = Queue::open(mapping.clone(), QueueOptions { depth: 1, max_request: 65536 }).unwrap();
    let (offset, len) = (0, mapping.size());
    let zeroes = Request::WriteZeroes { offset, len, durable: false, punch: false, fast: false };
    for request in [zeroes, Request::Flush] {
        queue.submit(0, request).expect("there is room");
        let over = loop {
            match queue.next_completion() {
                Some(over) => break over,
                None => queue.wait().unwrap(),
            }
        };
        over.result.unwrap();
    }
}

/// Ends the process when nothing moves: a thread that waits for ever cannot be stopped otherwise.
fn watch(setup: &Setup, shared: &Shared) {
    let (mut seen, mut since) = (0, Instant::now());
    loop {
        let progress = shared.progress.load(SeqCst);
        if progress == u64::MAX {
            return;
        }
        if progress != seen {
            (seen, since) = (progress, Instant::now());
        }
        if since.elapsed() > HANGS {
            let mapping = shared.mapping();
            eprintln!("nothing moves any more: {setup}\n{} {:?}", mapping.policy(), mapping.stats());
            std::process::exit(70);
        }
        thread::sleep(Duration::from_millis(20));
    }
}
