/* Shared by the programs that measure the time from a file to the first result. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST = 64 };

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void* read_bytes(const char* path, size_t bytes) {
    FILE* file = fopen(path, "rb");
    void* memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (file == NULL || memory == NULL || fread(memory, 1, bytes, file) != bytes) {
        perror(path);
        exit(1);
    }
    fclose(file);
    return memory;
}

static void write_bytes(FILE* file, const void* memory, size_t bytes) {
    if (fwrite(memory, 1, bytes, file) != bytes) {
        perror("results");
        exit(1);
    }
}

static FILE* results_file(const char* path) {
    FILE* file = fopen(path, "wb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    return file;
}

/* Prints the wall time in seconds since `begin`, when the file was not yet open, and the processor time of the process. */
static void report(double begin) {
    const double processor = seconds(CLOCK_PROCESS_CPUTIME_ID);
    printf("%.9f %.9f\n", seconds(CLOCK_MONOTONIC) - begin, processor);
}
