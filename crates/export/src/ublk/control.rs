//! Commands to /dev/ublk-control: each is an operation of a small ring with long entries.
//!
//! A command may take long (starting waits for the queues, deleting for the last user), so the wait
//! is divided into periods, after each of which the caller can cancel it.

#![expect(unsafe_code, reason = "commands of ublk's driver")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::abi as sys;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use underseal_device::restrictions;

use crate::{Error, ErrorKind, Result};

const PATH: &str = "/dev/ublk-control";

#[expect(clippy::cast_possible_truncation, reason = "some hundred bytes")]
const PARAMS: u32 = size_of::<sys::ublk_params>() as u32;

/// The period after which the caller can cancel a command.
const PIECE: Duration = Duration::from_millis(50);

/// A connection to the driver. It belongs to the thread that opened it.
pub(super) struct ControlDevice {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    /// The number of commands so far: the completion of a cancelled one may still arrive.
    commands: u64,
    /// True when commands name devices by their path, too: those of users other than root.
    named: bool,
}

/// Structures of the driver that consist of plain bytes.
///
/// # Safety
/// Any bytes make a valid value.
unsafe trait Plain: Copy {}
// SAFETY: integers, and structures of integers.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for sys::ublksrv_ctrl_dev_info {}
// SAFETY: as above.
unsafe impl Plain for sys::ublk_params {}

impl ControlDevice {
    /// Opens the driver. Fails with `UblkDevice` when the kernel has none; with `Forbidden` when
    /// this user has no access.
    pub(super) fn open(unprivileged: bool) -> Result<Self> {
        let file = File::options().read(true).write(true).open(PATH).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => {
                Error::new(ErrorKind::UblkDevice, format!("this kernel has no ublk: there is no {PATH}"))
            }
            io::ErrorKind::PermissionDenied => {
                Error::new(ErrorKind::Forbidden, format!("this user may not use {PATH}")).with_source(e)
            }
            _ => Error::new(ErrorKind::UblkDevice, format!("{PATH} cannot be opened")).with_source(e),
        })?;
        let ring = restrictions::commands_only(4).map_err(|e| {
            Error::new(ErrorKind::UblkDevice, "no io_uring, which ublk is used through").with_source(e)
        })?;
        Ok(Self { file, ring, commands: 0, named: unprivileged })
    }

    /// Returns the driver's features: `UBLK_F_` bits. Linux before 6.5 lacks this command.
    pub(super) fn features(&mut self) -> io::Result<u64> {
        let mut features = 0;
        self.exchange(sys::UBLK_U_CMD_GET_FEATURES, u32::MAX, 0, Some(&mut features), false, &|| false)?;
        Ok(features)
    }

    /// Makes a device; the kernel completes `info`. Fails with EEXIST when the number is in use.
    pub(super) fn add(&mut self, info: &mut sys::ublksrv_ctrl_dev_info) -> io::Result<()> {
        self.exchange(sys::UBLK_U_CMD_ADD_DEV, info.dev_id, 0, Some(info), false, &|| false)
    }

    /// Returns the state of a device. Fails with ENODEV when no device has the number.
    pub(super) fn info(&mut self, id: u32) -> io::Result<sys::ublksrv_ctrl_dev_info> {
        let mut info = sys::ublksrv_ctrl_dev_info::default();
        let operation = if self.named { sys::UBLK_U_CMD_GET_DEV_INFO2 } else { sys::UBLK_U_CMD_GET_DEV_INFO };
        self.exchange(operation, id, 0, Some(&mut info), true, &|| false)?;
        Ok(info)
    }

    /// Sets the parameters of the disk, before it is started.
    pub(super) fn set_params(&mut self, id: u32, mut params: sys::ublk_params) -> io::Result<()> {
        params.len = PARAMS;
        self.exchange(sys::UBLK_U_CMD_SET_PARAMS, id, 0, Some(&mut params), true, &|| false)
    }

    /// Returns the parameters of the disk.
    pub(super) fn params(&mut self, id: u32) -> io::Result<sys::ublk_params> {
        let mut params = sys::ublk_params { len: PARAMS, ..Default::default() };
        self.exchange(sys::UBLK_U_CMD_GET_PARAMS, id, 0, Some(&mut params), true, &|| false)?;
        Ok(params)
    }

    /// Changes the size of a started disk, in sectors of 512 bytes, where the driver
    /// [supports](Self::features) it.
    pub(super) fn update_size(&mut self, id: u32, sectors: u64) -> io::Result<()> {
        self.exchange::<u64>(sys::UBLK_U_CMD_UPDATE_SIZE, id, sectors, None, true, &|| false)
    }

    /// Starts the disk, once every queue fetches requests. Fails with ECANCELED when `gives_up`
    /// returns true.
    pub(super) fn start(&mut self, id: u32, gives_up: &dyn Fn() -> bool) -> io::Result<()> {
        self.exchange::<u64>(sys::UBLK_U_CMD_START_DEV, id, pid(), None, true, gives_up)
    }

    /// Stops the disk; every fetch is answered with ENODEV. Fails with ECANCELED when `gives_up`
    /// returns true.
    pub(super) fn stop(&mut self, id: u32, gives_up: &dyn Fn() -> bool) -> io::Result<()> {
        self.exchange::<u64>(sys::UBLK_U_CMD_STOP_DEV, id, 0, None, true, gives_up)
    }

    /// Deletes the device, and waits until no process has it open. Fails with ECANCELED when
    /// `gives_up` returns true.
    pub(super) fn delete(&mut self, id: u32, gives_up: &dyn Fn() -> bool) -> io::Result<()> {
        self.exchange::<u64>(sys::UBLK_U_CMD_DEL_DEV, id, 0, None, true, gives_up)
    }

    /// Starts the recovery of a device whose server has ended. Fails with EBUSY while the kernel
    /// still sees the old server.
    pub(super) fn begin_recovery(&mut self, id: u32) -> io::Result<()> {
        self.exchange::<u64>(sys::UBLK_U_CMD_START_USER_RECOVERY, id, 0, None, true, &|| false)
    }

    /// Ends the recovery, once every queue fetches requests. Fails with ECANCELED when `gives_up`
    /// returns true.
    pub(super) fn end_recovery(&mut self, id: u32, gives_up: &dyn Fn() -> bool) -> io::Result<()> {
        self.exchange::<u64>(sys::UBLK_U_CMD_END_USER_RECOVERY, id, pid(), None, true, gives_up)
    }

    /// Runs one command. The value `about` is passed to the driver, and receives its reply.
    fn exchange<T: Plain>(
        &mut self,
        operation: u32,
        id: u32,
        data: u64,
        mut about: Option<&mut T>,
        of_device: bool,
        gives_up: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        let path = if self.named && of_device { super::character::path(id).into_bytes() } else { Vec::new() };
        let size = if about.is_some() { size_of::<T>() } else { 0 };
        let mut memory = vec![0u8; path.len() + size];
        memory[..path.len()].copy_from_slice(&path);
        if let Some(about) = &about {
            // SAFETY: the value's bytes go to the end of `memory`, which has room for them.
            unsafe {
                let at = memory.as_mut_ptr().add(path.len());
                std::ptr::copy_nonoverlapping(std::ptr::from_ref::<T>(about).cast::<u8>(), at, size);
            }
        }
        let short = |len: usize| u16::try_from(len).map_err(|_| Errno::TOOBIG);
        let command = sys::ublksrv_ctrl_cmd {
            dev_id: id,
            queue_id: u16::MAX,
            len: short(memory.len())?,
            addr: if memory.is_empty() { 0 } else { memory.as_mut_ptr() as u64 },
            data: [data],
            dev_path_len: short(path.len())?,
            ..Default::default()
        };
        // The kernel may use the memory until a cancelled command completes.
        let memory = std::mem::ManuallyDrop::new(memory);
        self.send(operation, command, gives_up)?;
        let memory = std::mem::ManuallyDrop::into_inner(memory);
        if let Some(about) = &mut about {
            // SAFETY: as above, in the opposite direction; any bytes make a valid value.
            unsafe {
                let from = memory.as_ptr().add(path.len());
                std::ptr::copy_nonoverlapping(from, std::ptr::from_mut::<T>(about).cast::<u8>(), size);
            }
        }
        Ok(())
    }

    fn send(
        &mut self,
        operation: u32,
        command: sys::ublksrv_ctrl_cmd,
        gives_up: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        let mut payload = [0; 80];
        const LEN: usize = size_of::<sys::ublksrv_ctrl_cmd>();
        const _: () = assert!(LEN == 32, "what the driver expects in the entry");
        // SAFETY: a structure of integers without gaps, 32 bytes long, as bytes.
        payload[..LEN]
            .copy_from_slice(&unsafe { std::mem::transmute::<sys::ublksrv_ctrl_cmd, [u8; LEN]>(command) });
        self.commands += 1;
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), operation)
            .cmd(payload)
            .build()
            .user_data(self.commands);
        // SAFETY: the caller keeps the command's memory until the command is complete.
        unsafe { self.ring.submission().push(&entry) }
            .map_err(|_| io::Error::from_raw_os_error(Errno::BUSY.raw_os_error()))?;
        loop {
            let piece = types::Timespec::from(PIECE);
            let until = types::SubmitArgs::new().timespec(&piece);
            match self.ring.submitter().submit_with_args(1, &until) {
                Ok(_) => {}
                Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::TIME | Errno::INTR)) => {}
                Err(e) => return Err(e),
            }
            let number = self.commands;
            match self.ring.completion().find(|done| done.user_data() == number) {
                Some(done) if done.result() < 0 => return Err(io::Error::from_raw_os_error(-done.result())),
                Some(_) => return Ok(()),
                None if gives_up() => return Err(Errno::CANCELED.into()),
                None => {}
            }
        }
    }
}

fn pid() -> u64 {
    std::process::id().into()
}
