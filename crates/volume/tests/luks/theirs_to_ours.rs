//! Headers made by cryptsetup and qemu, read by underseal.

use underseal_volume::{ErrorKind, Header, UnlockOptions};

use crate::support::*;

#[test]
fn what_cryptsetup_makes_opens_here_with_the_same_volume_key() {
    let pbkdf2 = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000";
    let argon2 = "--pbkdf-force-iterations 4 --pbkdf-memory 1024 --pbkdf-parallel";
    let cases = [
        "--type luks1 --pbkdf-force-iterations 1000".into(),
        "--type luks1 --pbkdf-force-iterations 1000 -c aes-cbc-essiv:sha256 -s 256 -h sha1".into(),
        "--type luks1 --pbkdf-force-iterations 1000 --offset 8192 -h sha512".into(),
        format!("--type luks2 {pbkdf2}"),
        format!("--type luks2 {pbkdf2} -h sha512 -s 256"),
        "--type luks1 --pbkdf-force-iterations 1000 -h sm3".into(),
        format!("--type luks2 {pbkdf2} -h sm3"),
        format!("--type luks2 {pbkdf2} -h sha3-512"),
        format!("--type luks2 {pbkdf2} -h sha384 --sector-size 1024"),
        format!("--type luks2 {pbkdf2} --sector-size 512"),
        format!("--type luks2 {pbkdf2} --sector-size 4096 --label name --subsystem part"),
        format!("--type luks2 {pbkdf2} -c aes-cbc-essiv:sha256 -s 128"),
        format!("--type luks2 {pbkdf2} --luks2-metadata-size 64k --luks2-keyslots-size 2m"),
        format!("--type luks2 {pbkdf2} --keyslot-cipher aes-cbc-essiv:sha256 --keyslot-key-size 256"),
        format!("--type luks2 --pbkdf argon2id {argon2} 1"),
        format!("--type luks2 --pbkdf argon2id {argon2} 2"),
        format!("--type luks2 --pbkdf argon2i {argon2} 3 -h blake2s-256"),
    ];
    for case in &cases {
        let scratch = Scratch::new();
        let image = scratch.image("disk.img", 24 << 20);
        let (path, secret) = (image.to_str().unwrap(), scratch.passphrase());
        let volume_key: Vec<u8> = (1..=64).collect();
        let bits = case.split("-s ").nth(1).map_or(512, |s| s.split(' ').next().unwrap().parse().unwrap());
        let volume_key = &volume_key[..bits / 8];
        let key_file = scratch.file("volume-key", volume_key);
        let mut args = vec!["luksFormat", "--volume-key-file", key_file.to_str().unwrap()];
        if !case.contains("-s ") {
            args.extend(["-s", "512"]);
        }
        args.extend(case.split(' '));
        args.extend(["--key-file", secret.to_str().unwrap(), path]);
        cryptsetup(&args);
        let file = open(&image);
        let header = Header::read(&file).unwrap_or_else(|e| panic!("{case}: {e}"));
        let opened = header.unlock(&file, &key(PASSPHRASE.as_bytes()), &UnlockOptions::default());
        let opened = opened.unwrap_or_else(|e| panic!("{case}: {e}"));
        assert_eq!(hex(opened.key.key().as_bytes()), hex(volume_key), "{case}");
        activate(&image, PASSPHRASE.as_bytes()).unwrap_or_else(|e| panic!("{case}: {e}"));
        header.volume_key(key(volume_key), &UnlockOptions::default()).unwrap();
        let check = header.key_check(&opened.key).unwrap();
        check.confirm(&key(volume_key)).unwrap();
        let longer = [volume_key, &[0]].concat();
        let other = [&volume_key[..1], &volume_key[..volume_key.len() - 1]].concat();
        for wrong in [&volume_key[1..], &longer, &[][..], &other] {
            assert_eq!(check.confirm(&key(wrong)).unwrap_err().kind(), ErrorKind::WrongKey, "{case}");
            let refused = header.volume_key(key(wrong), &UnlockOptions::default()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::WrongKey, "{case}: {} bytes", wrong.len());
        }
        let info = header.info();
        let shown = info.to_string();
        assert!(!shown.contains(&hex(volume_key)) && shown.contains(&info.uuid), "{case}");
        assert!(!serde_json::to_string(&info).unwrap().contains(&hex(volume_key)), "{case}");
    }
}

#[test]
fn a_header_that_cryptsetup_keeps_apart_opens_here() {
    for kind in ["luks1", "luks2"] {
        let scratch = Scratch::new();
        let (data, header) = (scratch.image("data", 1 << 20), scratch.path("header"));
        let (data_path, header_path) = (data.to_str().unwrap(), header.to_str().unwrap());
        let secret = scratch.passphrase();
        let secret = secret.to_str().unwrap();
        let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--key-file", secret];
        let args = ["luksFormat", "--type", kind, "--header", header_path];
        cryptsetup(&[&args[..], &cheap, &[data_path]].concat());
        let volume = activate_with(&header, &data, PASSPHRASE.as_bytes()).unwrap();
        assert_eq!((volume.size(), volume.segments()[0].lower(0)), (1 << 20, Some((0, 0))), "{kind}");
        let none = activate(&data, PASSPHRASE.as_bytes()).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::NoHeader, "{kind}");
    }
}

#[test]
fn what_qemu_makes_and_writes_reads_back_here() {
    for (cipher, mode, iv, hash) in [
        ("aes-256", "xts", "plain64", "sha256"),
        ("aes-128", "xts", "plain64", "sha1"),
        ("aes-256", "cbc", "essiv", "sha512"),
    ] {
        let scratch = Scratch::new();
        let image = scratch.path("disk.img");
        let secret = format!("secret,id=s,file={}", scratch.passphrase().display());
        let mut options =
            format!("key-secret=s,iter-time=10,cipher-alg={cipher},cipher-mode={mode},ivgen-alg={iv}");
        options += &format!(",hash-alg={hash}");
        if iv == "essiv" {
            options += ",ivgen-hash-alg=sha256";
        }
        let path = image.to_str().unwrap();
        run("qemu-img", &["create", "--object", &secret, "-f", "luks", "-o", &options, path, "4M"]);
        let source = format!("driver=luks,key-secret=s,file.filename={path}");
        let write = "write -P 0x5a 4096 65536";
        run("qemu-io", &["--object", &secret, "--image-opts", &source, "-c", write]);
        let volume = activate(&image, PASSPHRASE.as_bytes()).unwrap_or_else(|e| panic!("{options}: {e}"));
        assert_eq!(volume.size(), 4 << 20, "{options}");
        assert!(plaintext(&volume, &image, 4096 + 65536)[4096..].iter().all(|&b| b == 0x5a), "{options}");
    }
}
