//! `underseal format --type veracrypt`: a normal volume, or a hidden one inside of a normal one.

use std::ops::ControlFlow;

use underseal_formats::tcrypt::{Chain, NewHeaders, NewOptions, Prf};

use super::allow_overwriting;
use super::args::FormatArgs;
use super::destination::Destination;
use super::report;
use crate::error::{Error, Result};
use crate::foreign::new_password;
use crate::passphrase::confirm;
use crate::progress::Progress;
use crate::size;

pub(super) fn run(args: &FormatArgs, quiet: bool) -> Result<()> {
    let of = &args.veracrypt;
    let options = options(args)?;
    let hidden = of.hidden_size.is_some();
    let mut image = Destination::open(&args.image, args.size.or(volume(args)), args.force)?;
    if !hidden {
        allow_overwriting(&image, args.force)?;
    } else {
        refuse_other_than_noise(&image)?;
    }
    if hidden && !args.force {
        let shown = args.image.display();
        let what = format!(
            "{shown}: the hidden volume takes the end of the outer one. What the outer file system has there will be lost for \
             ever, and it must not use more than the {} before.",
            size::show(outer_left(image.size(), &options))
        );
        if !confirm(&what)? {
            return Err(
                Error::usage(what).with_remedy("--force, if the outer file system uses no more than that")
            );
        }
    }
    let (password, len) = new_password(&args.secret, &args.image)?;
    let checked = of.pim.unwrap_or_default().check_passphrase(options.prf, false, len);
    checked.map_err(|e| Error::from(e).with_remedy("a longer passphrase, or no --pim"))?;
    let in_image = |e| Error::from(e).within(args.image.display());
    let new = NewHeaders::prepare(image.size(), &password, &options).map_err(in_image)?;
    // Nothing is changed until here.
    image.settle()?;
    let data = new.data();
    let mut progress = Progress::new("filling with noise", Some(image.size()), quiet);
    let mut so_far = 0;
    let mut tell = |done, _all| {
        progress.advance(done - so_far);
        so_far = done;
        ControlFlow::Continue(())
    };
    image.on_bytes(|bytes| new.make(bytes, &mut tell).map(drop).map_err(in_image))?;
    drop(progress);
    let image_size = image.size();
    image.keep();
    report::veracrypt(args, quiet, options.chain, image_size, &data)
}

/// Refuses to make a hidden volume in an image that holds no outer volume, also with `--force`:
/// that one is for what the outer file system loses. A volume of VeraCrypt looks like noise.
fn refuse_other_than_noise(image: &Destination) -> Result<()> {
    let Some(found) = image.contents()?.filter(|found| *found != "data") else { return Ok(()) };
    let what = format!("{}: holds {found}, and no outer volume of VeraCrypt's", image.path().display());
    Err(Error::usage(what).with_remedy("make the outer volume first: the same command without --hidden-size"))
}

/// Returns the image size for `--plain-size`.
fn volume(args: &FormatArgs) -> Option<u64> {
    args.plain_size.map(|plain| plain.saturating_add(4 * 65536))
}

/// Returns the bytes of the outer volume before the hidden one.
fn outer_left(host: u64, options: &NewOptions) -> u64 {
    let reserve = if options.hidden.is_some_and(|size| size < 2 << 20) { 4096 } else { 131_072 };
    host.saturating_sub(4 * 65536 + reserve + options.hidden.unwrap_or(0))
}

fn options(args: &FormatArgs) -> Result<NewOptions> {
    let of = &args.veracrypt;
    if args.header.is_some() || args.integrity.is_some() || args.volume_key_file.is_some() || args.dry_run {
        let what = "--header, --integrity, --volume-key-file and --dry-run are not for VeraCrypt volumes";
        return Err(Error::usage(what));
    }
    // The default of the other types names a mode; here the mode is always XTS.
    let chain = match args.cipher.as_written() {
        "aes-xts-plain64" => "aes",
        written => written,
    };
    Ok(NewOptions {
        chain: Chain::of_veracrypt(chain)?,
        prf: of.prf.unwrap_or(Prf::Sha512),
        pim: of.pim.unwrap_or_default(),
        sector_size: args.sector_size.unwrap_or(512),
        quick: of.quick,
        hidden: of.hidden_size,
    })
}
