//! A folder of devices that has no room, as on a full /run. Here folders stand where files are to be
//! made.

use std::fs;

use rustix::process::{Signal, kill_process};

use crate::dm::mapper::Mapper;
use crate::support::tools::{PATIENCE, wait_until};

fn kill_back_end(mapper: &Mapper) {
    kill_process(mapper.back_end().expect("a back end"), Signal::KILL).unwrap();
}

#[test]
fn a_rename_whose_names_cannot_be_kept_is_refused_and_changes_nothing() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script(
        "
dmsetup create $N-a --table '0 8 zero'
kept=dm/$(stat --dereference --format %Lr /dev/mapper/$N-a)
mkdir $kept/names.new
fails dmsetup rename $N-a $N-b 2> /dev/null
fails dmsetup rename --setuuid $N-a U-$N 2> /dev/null
rmdir $kept/names.new
dmsetup info $N-a > info
fails dmsetup info U-$N > info 2>&1
fails test -e /dev/mapper/$N-b",
    );
    assert!(mapper.log().contains("its names cannot be kept"), "{}", mapper.log());
    kill_back_end(&mapper);
    mapper.script(
        "
dmsetup rename $N-a $N-b
dmsetup rename --setuuid $N-b U-$N",
    );
    kill_back_end(&mapper);
    let out = mapper.script(
        "
ls /dev/mapper | grep $N | sed s/$N//
test $(blockdev --getsz /dev/mapper/$N-b) = 8
test \"$(dmsetup info --columns --noheadings -o uuid $N-b)\" = U-$N
dmsetup remove $N-b",
    );
    assert_eq!(out, "-b\n", "{}", mapper.log());
}

/// Earlier versions acknowledged a rename that they could not keep.
#[test]
fn of_two_devices_with_one_name_each_has_the_name_of_its_node() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script(
        "
dmsetup create $N-a --table '0 8 zero'
dmsetup create $N-b --table '0 16 zero'
printf '%s\\0' $N-a > dm/$(stat --dereference --format %Lr /dev/mapper/$N-b)/names",
    );
    for _ in 0..2 {
        kill_back_end(&mapper);
        let out = mapper.script(
            "
dmsetup table $N-a; dmsetup table $N-b
for of in a b; do blockdev --getsz /dev/mapper/$N-$of; done",
        );
        assert_eq!(out, "0 8 zero \n0 16 zero \n8\n16\n", "{}", mapper.log());
    }
    mapper.script("dmsetup remove $N-a; dmsetup remove $N-b");
}

#[test]
fn a_table_server_that_cannot_listen_at_first_is_adopted_once_it_can() {
    let Some(mapper) = Mapper::new() else { return };
    let number = mapper.script(
        "
dmsetup create $N-a --table '0 8 zero'
stat --dereference --format %Lr /dev/mapper/$N-a",
    );
    let socket = mapper.folder().join(number.trim()).join("server");
    fs::create_dir(&socket).unwrap();
    kill_back_end(&mapper);
    let has_failed = || mapper.log().contains("no other back end can have the table");
    wait_until("it cannot listen", PATIENCE, has_failed);
    fs::remove_dir(&socket).unwrap();
    mapper.script(
        "
tries=100
until dmsetup info $N-a > info 2> /dev/null; do sleep 0.1; tries=$((tries - 1)); test $tries -gt 0; done
test $(blockdev --getsz /dev/mapper/$N-a) = 8
dmsetup remove $N-a",
    );
}
