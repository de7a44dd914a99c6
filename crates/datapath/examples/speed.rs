use std::sync::Arc;
use std::time::{Duration, Instant};
use underseal_cipher::{Key, SectorSize, build};
use underseal_datapath::*;
use underseal_device::{Device, RamDevice};
use underseal_volume::{Segment, Volume};
fn main() {
    let size = 64u64 << 20;
    let dev: Arc<dyn Device> = Arc::new(RamDevice::new(size));
    dev.channel(1).unwrap().write_now(0, &vec![7u8; size as usize]);
    let key = Key::new(&(0..64).map(|i| i * 3).collect::<Vec<u8>>()).unwrap();
    let cipher = build(
        &std::env::var("CIPHER").unwrap_or("aes-xts-plain64".into()).parse().unwrap(),
        &key,
        SectorSize::S4096,
    )
    .unwrap();
    let vol = Volume::new(vec![Segment::stored(0, size, 0, 0, cipher)]).unwrap();
    let mapping = Arc::new(Mapping::new(vol, dev).unwrap());
    let args: Vec<String> = std::env::args().collect();
    let (bs, depth): (usize, usize) = (args[1].parse().unwrap(), args[2].parse().unwrap());
    let secs: f64 = args[3].parse().unwrap();
    for round in 0..3 {
        for p in &args[4..] {
            mapping.set_policy(p.parse().unwrap()).unwrap();
            let mut q = Queue::open(mapping.clone(), QueueOptions::default()).unwrap();
            let before = mapping.stats();
            let (mut at, mut n) = (0u64, 0u64);
            let t = Instant::now();
            for i in 0..depth {
                q.submit(i as u64, Request::Read { offset: at, len: bs }).unwrap();
                at = (at + bs as u64) % size;
            }
            while t.elapsed() < Duration::from_secs_f64(secs) {
                if let Some(c) = q.next_completion() {
                    c.result.unwrap();
                    q.free(c.buffer.unwrap());
                    n += 1;
                    q.submit(c.tag, Request::Read { offset: at, len: bs }).unwrap();
                    at = (at + bs as u64) % size;
                } else {
                    q.wait().unwrap();
                }
            }
            let e = t.elapsed().as_secs_f64();
            let s = mapping.stats();
            println!(
                "{round} {p:10} {:8.0} MB/s  {:8.3} us/req in {} wk {} back {} wm {:?} cost {:?}",
                n as f64 * bs as f64 / e / 1e6,
                e / n as f64 * 1e6,
                s.dispatched.inline - before.dispatched.inline,
                s.dispatched.workers - before.dispatched.workers,
                s.dispatched.taken_back - before.dispatched.taken_back,
                s.backlog.watermark,
                s.backlog.cost
            );
        }
    }
}
