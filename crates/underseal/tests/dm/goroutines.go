// Makes and removes devices from eight goroutines, without the C library. The runtime interrupts its
// threads by signals: for busy goroutines, and to stop the world.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

type dmIoctl struct {
	version     [3]uint32
	dataSize    uint32
	dataStart   uint32
	targetCount uint32
	openCount   int32
	flags       uint32
	eventNr     uint32
	padding     uint32
	dev         uint64
	name        [128]byte
	uuid        [129]byte
	data        [7]byte
}

func do(fd uintptr, nr uintptr, d *dmIoctl) syscall.Errno {
	_, _, e := syscall.Syscall(syscall.SYS_IOCTL, fd, 0xc138fd00|nr, uintptr(unsafe.Pointer(d)))
	return e
}

func head(name string) *dmIoctl {
	d := &dmIoctl{version: [3]uint32{4, 0, 0}, dataSize: 312, dataStart: 312}
	copy(d.name[:], name)
	return d
}

func main() {
	prefix := os.Args[1]
	f, err := os.OpenFile("/dev/mapper/control", os.O_RDWR, 0)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	stop := make(chan bool)
	// These are preempted.
	for i := 0; i < 4; i++ {
		go func() {
			n := 0
			for {
				select {
				case <-stop:
					return
				default:
					n++
				}
			}
		}()
	}
	go func() {
		for {
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
	}()
	var wait sync.WaitGroup
	for i := 0; i < 8; i++ {
		wait.Add(1)
		go func(i int) {
			defer wait.Done()
			for j := 0; j < 10; j++ {
				name := fmt.Sprintf("%s-%d-%d", prefix, i, j)
				if e := do(f.Fd(), 3, head(name)); e != 0 {
					fmt.Println("create", name, e)
				}
				if e := do(f.Fd(), 4, head(name)); e != 0 {
					fmt.Println("remove", name, e)
				}
			}
		}(i)
	}
	wait.Wait()
	close(stop)
	fmt.Println("done")
}
