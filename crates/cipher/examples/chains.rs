//! Prints the speed of VeraCrypt's ciphers and chains beside the harmonic sum of their parts, on
//! requests of 128 KiB: `cargo run --release -p underseal-cipher --example chains`.

use std::sync::Arc;
use std::time::Instant;

use underseal_cipher::{BuildOptions, CpuPath, InOutBuf, Key, SectorCipher, SectorSize, build_with, chain};

const REQUEST: usize = 128 << 10;

fn xts(name: &str, cpu: CpuPath) -> Arc<dyn SectorCipher> {
    let key = Key::new(&(0..64).collect::<Vec<u8>>()).unwrap();
    let spec = format!("{name}-xts-plain64").parse().unwrap();
    let (sector_size, iv_large_sectors) = (SectorSize::S512, false);
    let options = BuildOptions {
        spec: &spec,
        key: &key,
        sector_size,
        iv_large_sectors,
        integrity: None,
        cpu: Some(cpu),
    };
    build_with(&options).unwrap()
}

/// Gigabytes a second, the best of many short rounds: encryption, decryption.
fn speed(cipher: &dyn SectorCipher) -> [f64; 2] {
    let mut data = vec![7; REQUEST];
    [true, false].map(|encrypt| {
        let mut best = f64::MAX;
        for _ in 0..60 {
            let begun = Instant::now();
            let data = InOutBuf::from(&mut data[..]);
            if encrypt {
                cipher.encrypt(0, data)
            } else {
                cipher.decrypt(0, data)
            }
            best = best.min(begun.elapsed().as_secs_f64());
        }
        REQUEST as f64 / best / 1e9
    })
}

#[expect(clippy::print_stdout, reason = "a table is what this is for")]
fn main() {
    let cpu = CpuPath::chosen().unwrap();
    println!("{:<32} {:>8} {:>8}  of the harmonic sum", cpu.name(), "encrypt", "decrypt");
    let alone = |name: &str| speed(&*xts(name, cpu));
    for name in ["aes", "serpent", "twofish", "camellia", "kuznyechik"] {
        let [encrypt, decrypt] = alone(name);
        println!("{name:<32} {encrypt:>8.2} {decrypt:>8.2}");
    }
    let [library, back] = speed(&*xts("kuznyechik", CpuPath::Portable));
    let [kernel, undone] = alone("kuznyechik");
    println!("kuznyechik: {:.2} and {:.2} times its library", kernel / library, undone / back);
    for name in ["twofish-aes", "serpent-twofish-aes", "camellia-serpent-kuznyechik", "aes-kuznyechik"] {
        let parts: Vec<&str> = name.split('-').collect();
        let whole = speed(&*chain(parts.iter().map(|part| xts(part, cpu)).collect()).unwrap());
        let each: Vec<[f64; 2]> = parts.iter().map(|part| alone(part)).collect();
        let sum = [0, 1].map(|way| 1.0 / each.iter().map(|of| 1.0 / of[way]).sum::<f64>());
        let (a, b) = (whole[0] / sum[0], whole[1] / sum[1]);
        println!("{name:<32} {:>8.2} {:>8.2}  {a:.2} {b:.2}", whole[0], whole[1]);
    }
}
