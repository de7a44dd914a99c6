//! Copies the plaintext of an encrypted image into a file: `copy_out IMAGE OUTPUT`, with the
//! passphrase on standard input.

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};

use underseal_image::OpenOptions;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(path), Some(output)) = (arguments.next(), arguments.next()) else {
        return Err("usage: copy_out IMAGE OUTPUT < PASSPHRASE".into());
    };
    let mut passphrase = Vec::with_capacity(8192);
    std::io::stdin().take(8192).read_to_end(&mut passphrase)?;
    if passphrase.last() == Some(&b'\n') {
        passphrase.pop();
    }
    let image = OpenOptions::new().passphrase(&passphrase)?.open(path)?;
    passphrase.fill(0);

    let mut output = File::create_new(output)?;
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    loop {
        let read = image.read_at(offset, &mut buffer)?;
        if read == 0 {
            break;
        }
        output.write_all(&buffer[..read])?;
        offset += read as u64;
    }
    output.sync_all()?;
    eprintln!("{offset} bytes");
    Ok(())
}
