//! Commands for open volumes: `list`, `status`, `policy`, `suspend`, `resume`, `resize`, `message`,
//! `close`, `top`.

mod close;
mod message;
mod resume;
mod show;
mod top;

use std::path::Path;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
pub(crate) use close::{CloseLimit, CloseLimitArgs};
pub(super) use show::{state, table};
use underseal_cipher::Key;
use underseal_export::control::{
    Client, Directory, ImageIdentity, Name, Refusal, RefusalKind, Reply, Request, Status, VolumeRecord,
};

use self::close::CloseArgs;
use self::message::MessageArgs;
use self::resume::ResumeArgs;
use self::top::TopArgs;
use super::host::side_by_side;
use super::open::UpgradeArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::is_remote;
use crate::output::{Versioned, json, print, print_json, printable};
use crate::size;

/// How long a server may take for an answer from memory.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The same limit where all servers are asked.
pub(super) const PATIENCE_OF_ALL: Duration = Duration::from_secs(10);

/// How many servers are asked at a time: a server that hangs delays no other one.
pub(super) const AT_A_TIME: usize = 32;

/// Which of the open volumes.
#[derive(Debug, Args)]
pub(crate) struct NameArg {
    /// The volume, as `underseal list` calls it
    pub(crate) name: Name,
}

/// A command to an open volume.
#[derive(Debug, Subcommand)]
pub(crate) enum Control {
    List(ListArgs),
    Status(StatusArgs),
    Policy(PolicyArgs),
    Suspend(SuspendArgs),
    Resume(Box<ResumeArgs>),
    Resize(ResizeArgs),
    Message(MessageArgs),
    Close(CloseArgs),
    Upgrade(UpgradeArgs),
    Top(TopArgs),
}

pub(super) fn run(command: Control, quiet: bool) -> Result<()> {
    match command {
        Control::List(args) => list(&args),
        Control::Status(args) => status(&args),
        Control::Policy(args) => policy(args),
        Control::Suspend(args) => suspend(&args),
        Control::Resume(args) => resume::run(&args),
        Control::Resize(args) => resize(&args, quiet),
        Control::Message(args) => message::run(&args),
        Control::Close(args) => close::end(&args.volume.name, args.limit.starting_now()),
        Control::Upgrade(args) => super::open::take_over(&args, quiet),
        Control::Top(args) => top::run(&args),
    }
}

/// Lists the volumes that are open.
///
/// A server that does not answer within 10 seconds is named on stderr; the exit status is 7 then.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal list
  underseal list --json | jq -r '.[].name'")]
pub(crate) struct ListArgs {
    /// For programs: an array of what `underseal status --json` prints
    #[arg(long)]
    pub(crate) json: bool,
}

fn list(args: &ListArgs) -> Result<()> {
    let all = all()?;
    let count = all.len();
    let mut volumes = Vec::new();
    for (_, status) in all {
        match status {
            Ok(status) => volumes.push(status),
            Err(e) => log::warn!("{}", e.what()),
        }
    }
    let unknown = count - volumes.len();
    let text = if args.json {
        json(&volumes.iter().map(Versioned::new).collect::<Vec<_>>())?
    } else {
        show::list(&volumes)
    };
    print(&text)?;
    if unknown == 0 {
        return Ok(());
    }
    Err(Error::new(Exit::Partial, format!("{unknown} of {count} servers did not say how their volumes are")))
}

/// Shows what a volume does, and how long each stage of its requests takes.
///
/// Stages: queued, until a thread takes the request up; crypto, from when it is due until it is
/// done; lower, in the lower device; reply, until the answer is sent. total is the whole way. A
/// figure such as p99 is what 99 in 100 requests took at most.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal status disk.img
  underseal status disk.img --json | jq .latency.total.p99_ns")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) volume: NameArg,
    /// For programs: everything as one JSON object; times are in nanoseconds, sizes in bytes.
    /// Fields may be added
    #[arg(long)]
    pub(crate) json: bool,
}

fn status(args: &StatusArgs) -> Result<()> {
    let status = self::ask_status(&args.volume.name)?;
    if args.json { print_json(&status) } else { print(&show::status(&status)) }
}

/// Shows a volume's policy, or sets another one while the volume is in use.
///
/// Each request goes the way that is set when it comes.
#[derive(Debug, Args)]
#[command(after_help = POLICIES)]
pub(crate) struct PolicyArgs {
    #[command(flatten)]
    pub(crate) volume: NameArg,
    /// The new policy
    pub(crate) policy: Option<String>,
}

fn policy(args: PolicyArgs) -> Result<()> {
    let name = &args.volume.name;
    match args.policy {
        Some(policy) => done(name, &Request::SetPolicy(policy)),
        None => print(&(printable(&ask_status(name)?.policy) + "\n")),
    }
}

/// Finishes a volume's requests in flight, flushes it, and holds back further requests until
/// `underseal resume`.
///
/// Clients wait. The image can be copied, or the key changed, while nothing moves. With --wipe the
/// key is nowhere in memory afterwards, as with cryptsetup luksSuspend, and `underseal resume` asks
/// for it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal suspend disk.img && cp --reflink disk.img snapshot.img; underseal resume disk.img
  underseal suspend disk.img --wipe && systemctl suspend; underseal resume disk.img")]
pub(crate) struct SuspendArgs {
    #[command(flatten)]
    pub(crate) volume: NameArg,
    /// Give up, and resume, when requests in flight take longer than this
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(..=3600))]
    pub(crate) timeout: u32,
    /// Then wipe the volume's key; not of volumes of other systems (VeraCrypt, BitLocker,
    /// FileVault 2, loop-AES), whose key `resume` cannot set again
    #[arg(long)]
    pub(crate) wipe: bool,
}

fn suspend(args: &SuspendArgs) -> Result<()> {
    if args.wipe {
        can_be_resumed(&args.volume.name)?;
    }
    let request = Request::Suspend { seconds: args.timeout, wipe: args.wipe };
    let limit = PATIENCE + Duration::from_secs(args.timeout.into());
    finished(&args.volume.name, ask(&args.volume.name, &request, None, limit)?)
}

/// Refuses to wipe a key that `resume` cannot set again.
fn can_be_resumed(name: &Name) -> Result<()> {
    use underseal_export::control::status::Format::{Bitlk, Fvault2, Loopaes, Tcrypt};
    let format = self::ask_status(name)?.opened.map(|opened| opened.format);
    if !matches!(format, Some(Tcrypt | Bitlk | Fvault2 | Loopaes)) {
        return Ok(());
    }
    let what = format!("{name}: a volume of another system gets its key only when it is opened");
    let remedy = "`underseal suspend` without --wipe, or `underseal close` and later `open`; `underseal message NAME key wipe` for \
                  one that gets its key as `underseal table volume` prints it";
    Err(Error::new(Exit::Unsupported, what).with_remedy(remedy))
}

/// Gives a volume another size while it is open, until it is closed.
///
/// Without --size it takes all that its image or device has now, or what its LUKS2 header says
/// where that has a size. Nothing is written to the header, and nothing that lies beyond a smaller
/// end is lost: make the filesystem smaller before. Of a table with several lines the last one
/// changes. Users of a mount, a ublk device (Linux 6.16) and a virtual machine see the new size at
/// once, NBD clients when they connect again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  truncate -s 20G disk.img && underseal resize disk.img
  underseal resize disk.img --size 8G")]
pub(crate) struct ResizeArgs {
    #[command(flatten)]
    pub(crate) volume: NameArg,
    /// The new size
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub(crate) size: Option<u64>,
    /// Give up, and keep the old size, when requests beyond a smaller end take longer than this
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(..=3600))]
    pub(crate) timeout: u32,
}

/// Resizes the volume, and prints its new size and the clients that do not see it yet.
fn resize(args: &ResizeArgs, quiet: bool) -> Result<()> {
    let name = &args.volume.name;
    let request = Request::Resize { size: args.size, seconds: args.timeout };
    let limit = PATIENCE + Duration::from_secs(args.timeout.into());
    match ask(name, &request, None, limit)? {
        Reply::Resized { size, notes } => {
            notes.iter().for_each(|note| log::warn!("{name}: {}", printable(note)));
            if quiet { Ok(()) } else { print(&format!("{name} has {size} bytes now\n")) }
        }
        other => finished(name, other),
    }
}

/// Ends a volume's server, and waits until it has ended; it may be about to end already.
pub(crate) fn close_open(name: &Name, limit: CloseLimit) -> Result<()> {
    match close::asked(name, limit) {
        // The server had ended before it could be asked.
        Err(_) if status_within(name, limit.left(PATIENCE)).is_ok_and(|status| status.is_none()) => Ok(()),
        asked => close::ended(name, asked?, limit),
    }
}

/// Returns the state of a volume; `None` when it is not open. Fails when its server does not
/// answer.
pub(crate) fn status_of_open(name: &Name) -> Result<Option<Status>> {
    status_within(name, PATIENCE)
}

/// How long the process of a killed server may take to end once its connections are closed.
const ENDS: Duration = Duration::from_millis(200);

/// As [`status_of_open`], with a time limit.
pub(super) fn status_within(name: &Name, limit: Duration) -> Result<Option<Status>> {
    let begun = Instant::now();
    match Client::connect(&Directory::of_user().socket(name), limit) {
        Err(e) if e.kind() == underseal_export::ErrorKind::NotOpen => Ok(None),
        Err(e) => Err(failed(name, e)),
        Ok(mut client) => match status_of(name, &mut client, limit.saturating_sub(begun.elapsed())) {
            // The server was killed meanwhile, and the volume is not open.
            Err(_) if client.server_ends_within(ENDS) => Ok(None),
            status => status.map(Some),
        },
    }
}

/// Finds the open volume with this name or image. Fails when the directory of control sockets
/// cannot be used, or the server of that name does not answer.
pub(super) fn find(image: &Path) -> Result<Option<(Name, Status)>> {
    let text = image.to_string_lossy();
    // A folder, which may be where the volume is mounted, is no image.
    let there = image.exists() && !image.is_dir() || is_remote(image);
    if let Ok(name) = text.parse::<Name>()
        && let Some(status) = status_of_open(&name)?
    {
        if !there || lies_at(image, &name) {
            return Ok(Some((name, status)));
        }
        let other = printable(&status.image);
        log::warn!("`{name}` is ./{name} here; the volume of that name, which is open, is `{other}`");
    }
    // A server that does not answer is noticed by its lock on the image.
    let all = all()?.into_iter().filter_map(|(name, status)| Some((name, status.ok()?)));
    Ok(all.into_iter().find(|(name, _)| there && lies_at(image, name)))
}

/// Returns true when an image is the open volume's, as its record says: not another file that has
/// replaced it since.
pub(super) fn lies_at(image: &Path, name: &Name) -> bool {
    let Ok(Some(record)) = VolumeRecord::read(&Directory::of_user(), name) else { return false };
    if is_remote(image) {
        return image == Path::new(&record.image);
    }
    let identity = std::fs::metadata(image).ok().and_then(|about| ImageIdentity::of(&about));
    identity.is_some() && identity == record.identity
}

/// Returns the state of all open volumes of this user; for a volume whose state is unknown, an
/// error that names the volume. Fails when the directory of control sockets cannot be used.
pub(super) fn all() -> Result<Vec<(Name, Result<Status>)>> {
    let names: Vec<Name> = Directory::of_user().names()?.into_iter().collect();
    let found = side_by_side(&names, AT_A_TIME, |name| status_within(name, PATIENCE_OF_ALL).transpose());
    // A server that was killed, or has just ended, has no volume.
    Ok(names.into_iter().zip(found).filter_map(|(name, status)| Some((name, status?))).collect())
}

pub(super) fn ask_status(name: &Name) -> Result<Status> {
    let mut client = connect(name)?;
    match status_of(name, &mut client, PATIENCE) {
        Err(_) if client.server_ends_within(ENDS) => Err(not_open(name)),
        status => status,
    }
}

fn status_of(name: &Name, client: &mut Client, limit: Duration) -> Result<Status> {
    match client.ask(&Request::Status, None, limit).map_err(|e| failed(name, e))? {
        Reply::Status(status) => recorded(name, *status),
        Reply::Refused(refusal) => Err(refused(name, refusal)),
        _ => Err(Error::new(Exit::Failed, format!("{name}: no status in the answer"))),
    }
}

/// Replaces what the server says of its image by what it recorded before it entered its sandbox.
/// Without a record, which servers of older versions do not have, nothing is known of how the
/// volume was opened. Fails when the record cannot be read.
fn recorded(name: &Name, status: Status) -> Result<Status> {
    let record = VolumeRecord::read(&Directory::of_user(), name).map_err(|e| failed(name, e))?;
    let Some(VolumeRecord { image, opened, .. }) = record else {
        return Ok(Status { opened: None, ..status });
    };
    Ok(Status { image, opened: Some(opened), ..status })
}

/// The error for a volume without a record of how it was opened.
pub(super) fn without_record(name: &Name) -> Error {
    let what = format!(
        "{name}: there is no record of how it was opened: its server is of an older version, or removed the record"
    );
    Error::new(Exit::Unsupported, what)
}

/// Sends a request whose reply is "done" or a refusal.
pub(super) fn done(name: &Name, request: &Request) -> Result<()> {
    finished(name, ask(name, request, None, PATIENCE)?)
}

pub(super) fn ask(name: &Name, request: &Request, key: Option<&Key>, limit: Duration) -> Result<Reply> {
    connect(name)?.ask(request, key, limit).map_err(|e| failed(name, e))
}

pub(super) fn finished(name: &Name, reply: Reply) -> Result<()> {
    match reply {
        Reply::Refused(refusal) => Err(refused(name, refusal)),
        Reply::Noted(notes) => {
            notes.iter().for_each(|note| log::warn!("{name}: {}", printable(note)));
            Ok(())
        }
        Reply::Done | Reply::Resized { .. } | Reply::Checked(_) | Reply::Status(_) => Ok(()),
    }
}

pub(super) fn connect(name: &Name) -> Result<Client> {
    connect_within(name, PATIENCE, |e| failed(name, e))
}

fn not_open(name: &Name) -> Error {
    Error::usage(format!("no volume {name} is open"))
        .with_remedy("`underseal list` shows the open ones; of another user, as that user")
}

/// As [`connect`], with a time limit, and an error for the server that does not keep to it.
fn connect_within(
    name: &Name,
    limit: Duration,
    late: impl FnOnce(underseal_export::Error) -> Error,
) -> Result<Client> {
    Client::connect(&Directory::of_user().socket(name), limit).map_err(|e| match e.kind() {
        underseal_export::ErrorKind::Timeout => late(e),
        underseal_export::ErrorKind::NotOpen => not_open(name),
        underseal_export::ErrorKind::Forbidden => Error::from(e)
            .with_remedy("as the user who opened it; UNDERSEAL_RUNTIME_DIR with a directory of your own"),
        _ => e.into(),
    })
}

pub(super) fn failed(name: &Name, e: underseal_export::Error) -> Error {
    Error::from(e).within(name)
}

pub(super) fn refused(name: &Name, refusal: Refusal) -> Error {
    let exit = match refusal.kind {
        RefusalKind::Request
        | RefusalKind::Policy
        | RefusalKind::NotSuspended
        | RefusalKind::Key
        | RefusalKind::Size
        | RefusalKind::State => Exit::Usage,
        RefusalKind::NoKey | RefusalKind::WrongKey => Exit::NoKey,
        RefusalKind::Unsupported => Exit::Unsupported,
        RefusalKind::Lost => Exit::Lost,
        RefusalKind::Forbidden | RefusalKind::Busy | RefusalKind::Failed => Exit::Failed,
    };
    let error = Error::new(exit, format!("{name}: {}", refusal.message));
    if refusal.remedy.is_empty() { error } else { error.with_remedy(refusal.remedy) }
}

const POLICIES: &str = "\
Policies:
  inline      the thread that brings a request encrypts or decrypts it
  workers     a pool of threads does
  same-cpu    of the pool, the thread on the processor that the request came on
  adaptive    inline while that keeps up; what is more goes to idle workers
  kernel      as dm-crypt without flags: workers, and writes sorted by one submitter
After commas: read=, write= (one of the first four); order=ready|sorted|arrival (of writes); high-priority;
max-read-size=, max-write-size= (longer requests are split)

Examples:
  underseal policy disk.img
  underseal policy disk.img adaptive
  underseal policy disk.img workers,write=inline,max-read-size=64K";
