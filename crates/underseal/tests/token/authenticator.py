"""A FIDO2 device in software, on a pseudo-terminal: libfido2 takes any character device that answers in CTAPHID packets.

Prints the terminal's name, and a line for each PIN that it gets. The first argument is its PIN, the second `strict` if it answers
nothing without it. CTAP 2.0 (FIDO Alliance): hmac-secret, clientPIN protocol 1.
"""
import hashlib, hmac, os, struct, sys, tty, fcntl, termios
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

PIN = sys.argv[1].encode() if len(sys.argv) > 1 else None
STRICT = "strict" in sys.argv[2:]
CURVE = ec.SECP256R1()


def encode(value):
    def head(kind, n):
        for extra, code, size in ((24, n, ""), (1 << 8, 24, "B"), (1 << 16, 25, ">H"), (1 << 32, 26, ">I")):
            if n < extra:
                return bytes([kind << 5 | code]) + (struct.pack(size, n) if size else b"")
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, int):
        return head(0, value) if value >= 0 else head(1, -1 - value)
    if isinstance(value, bytes):
        return head(2, len(value)) + value
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    if isinstance(value, list):
        return head(4, len(value)) + b"".join(map(encode, value))
    return head(5, len(value)) + b"".join(encode(k) + encode(v) for k, v in value.items())


def decode(data, at=0):
    kind, n = data[at] >> 5, data[at] & 31
    at += 1
    if kind == 7:
        return {20: False, 21: True}.get(n), at
    if n >= 24:
        size = 1 << (n - 24)
        n, at = int.from_bytes(data[at:at + size], "big"), at + size
    if kind == 0:
        return n, at
    if kind == 1:
        return -1 - n, at
    if kind in (2, 3):
        piece = data[at:at + n]
        return (bytes(piece) if kind == 2 else piece.decode()), at + n
    items = []
    for _ in range(n * (kind - 3)):
        item, at = decode(data, at)
        items.append(item)
    return (items if kind == 4 else dict(zip(items[::2], items[1::2]))), at


def cose(key, algorithm):
    n = key.public_numbers()
    return {1: 2, 3: algorithm, -1: 1, -2: n.x.to_bytes(32, "big"), -3: n.y.to_bytes(32, "big")}


def aes(key, data, encrypt):
    work = Cipher(algorithms.AES(key), modes.CBC(bytes(16)))
    work = work.encryptor() if encrypt else work.decryptor()
    return work.update(data) + work.finalize()


def mac(key, data):
    return hmac.new(key, data, hashlib.sha256).digest()


class Device:
    def __init__(self):
        self.agreement = ec.generate_private_key(CURVE)
        self.token, self.keys, self.counter = os.urandom(16), {}, 0

    def shared(self, theirs):
        point = ec.EllipticCurvePublicNumbers(
            int.from_bytes(theirs[-2], "big"), int.from_bytes(theirs[-3], "big"), CURVE).public_key()
        return hashlib.sha256(self.agreement.exchange(ec.ECDH(), point)).digest()

    def verified(self, proof, data):
        if proof is None:
            return False
        if proof != mac(self.token, data)[:16]:
            raise ValueError(0x33)
        return True

    def authenticated(self, party, flags, more):
        self.counter += 1
        return hashlib.sha256(party.encode()).digest() + bytes([flags]) + struct.pack(">I", self.counter) + more

    def info(self):
        return {1: ["FIDO_2_0"], 2: ["hmac-secret"], 3: bytes(16),
                4: {"rk": False, "up": True, "clientPin": PIN is not None}, 5: 1200, 6: [1]}

    def make(self, asked):
        checked = self.verified(asked.get(8), asked[1])
        if PIN and not checked:
            raise ValueError(0x36)
        key, name = ec.generate_private_key(CURVE), os.urandom(32)
        self.keys[name] = (key, os.urandom(32), os.urandom(32), asked[2]["id"])
        about = bytes(16) + struct.pack(">H", 32) + name + encode(cose(key.public_key(), -7))
        about = self.authenticated(asked[2]["id"], 0xc1 | (4 if checked else 0), about + encode({"hmac-secret": True}))
        signature = key.sign(about + asked[1], ec.ECDSA(hashes.SHA256()))
        return {1: "packed", 2: about, 3: {"alg": -7, "sig": signature}}

    def assert_(self, asked):
        checked = self.verified(asked.get(6), asked[2])
        if STRICT and not checked:
            raise ValueError(0x36)
        known = [c["id"] for c in asked.get(3, []) if c["id"] in self.keys and self.keys[c["id"]][3] == asked[1]]
        if not known:
            raise ValueError(0x2e)
        key, plain, verified, _ = self.keys[known[0]]
        flags, more = (1 if asked.get(5, {}).get("up", True) else 0) | (4 if checked else 0), b""
        if "hmac-secret" in asked.get(4, {}):
            said = asked[4]["hmac-secret"]
            shared = self.shared(said[1])
            if mac(shared, said[2])[:16] != said[3]:
                raise ValueError(0x33)
            salt = aes(shared, said[2], False)
            secret = b"".join(mac(verified if checked else plain, salt[i:i + 32]) for i in range(0, len(salt), 32))
            more, flags = encode({"hmac-secret": aes(shared, secret, True)}), flags | 0x80
        about = self.authenticated(asked[1], flags, more)
        signature = key.sign(about + asked[2], ec.ECDSA(hashes.SHA256()))
        return {1: {"id": known[0], "type": "public-key"}, 2: about, 3: signature}

    def pin(self, asked):
        if asked[2] == 1:
            return {3: 8}
        if asked[2] == 2:
            return {1: cose(self.agreement.public_key(), -25)}
        print("PIN", flush=True)
        shared = self.shared(asked[3])
        if asked[2] != 5 or not PIN:
            raise ValueError(0x35)
        if aes(shared, asked[6], False) != hashlib.sha256(PIN).digest()[:16]:
            self.agreement = ec.generate_private_key(CURVE)
            raise ValueError(0x31)
        return {2: aes(shared, self.token, True)}

    def answer(self, body):
        try:
            asked = decode(body, 1)[0] if len(body) > 1 else {}
            said = {1: self.make, 2: self.assert_, 4: lambda _: self.info(), 6: self.pin}[body[0]](asked)
            return b"\0" + encode(said)
        except KeyError:
            return b"\x01"
        except ValueError as refused:
            return bytes([refused.args[0]])


def main():
    # The terminal is this session's own: nobody who opens it gets it as theirs.
    os.setsid()
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
    print(os.ttyname(theirs), flush=True)
    device, wanted, taken = Device(), 0, b""
    while True:
        packet = b""
        while len(packet) < 65:
            packet += os.read(ours, 65 - len(packet))
        channel, packet = packet[1:5], packet[5:]
        if packet[0] & 0x80:
            command, wanted, taken = packet[0] & 0x7f, int.from_bytes(packet[1:3], "big"), packet[3:]
        else:
            taken += packet[1:]
        if len(taken) < wanted:
            continue
        body = taken[:wanted]
        if command == 6:
            body += struct.pack(">I", 1) + bytes([2, 1, 0, 0, 0x0c])
        elif command == 0x10:
            body = device.answer(body)
        elif command != 1:
            continue
        pieces = [bytes([0x80 | command]) + struct.pack(">H", len(body)) + body[:57]]
        pieces += [bytes([i]) + body[at:at + 59] for i, at in enumerate(range(57, len(body), 59))]
        for piece in pieces:
            os.write(ours, channel + piece.ljust(60, b"\0"))


main()
